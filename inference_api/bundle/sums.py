"""Adds up the memory of a bundle's members, and finds remedies if it is too much. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference_api.loading.memory import slot_bytes

Key = tuple[str, str]  # folder or file of weights, and quantisation; equal keys share weights


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a member: its model, its draft, or its Medusa heads."""

    key: Key
    weights_bytes: int
    cache_bytes_per_row: int  # for a whole context
    cache_bytes: int  # for the guaranteed rows


@dataclass(frozen=True, slots=True)
class MemberMemory:
    """The memory of one member."""

    name: str
    pieces: tuple[Piece, ...]
    is_pinned: bool
    scratch_bytes: int  # memory of a step, which members share: the largest one counts

    @property
    def weights_by_key(self) -> Mapping[Key, int]:
        return {piece.key: piece.weights_bytes for piece in self.pieces}

    @property
    def weights_bytes(self) -> int:
        return sum(self.weights_by_key.values())

    @property
    def cache_bytes_per_row(self) -> int:
        return sum(piece.cache_bytes_per_row for piece in self.pieces)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache of its guaranteed rows."""
        return sum(piece.cache_bytes for piece in self.pieces)

    @property
    def need_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes that it takes in a slot, on CUDA."""
        return sum(slot_bytes(piece.weights_bytes, piece.cache_bytes) for piece in self.pieces)


Members = Sequence[MemberMemory]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: its key in the file, the bytes that members need together, and those of one."""

    key: str
    need: Callable[[Members], int]
    size: Callable[[MemberMemory], int]


def memory_need(members: Members) -> int:
    """Returns the bytes of all weights. Shared weights count once."""
    by_key = {key: size for each in members for key, size in each.weights_by_key.items()}
    return sum(by_key.values())


def fast_memory_need(members: Members) -> int:
    """Returns the bytes needed so that each member can be loaded at some time: for the pinned
    members, the largest of the others, and a step."""
    pinned = [each for each in members if each.is_pinned]
    loaded = [[*pinned, each] for each in members if not each.is_pinned] or [pinned]
    held = [memory_need(each) + sum(member.cache_bytes for member in each) for each in loaded]
    return max(held) + _scratch_bytes(members)


def slots_need(members: Members) -> int:
    """Returns the same on CUDA, where each member takes a slot as large as the largest needs."""
    num_pinned = sum(each.is_pinned for each in members)
    num_slots = num_pinned + (num_pinned < len(members))
    largest = max((each.slot_bytes for each in members), default=0)
    return num_slots * largest + _scratch_bytes(members)


def _scratch_bytes(members: Members) -> int:
    return max((each.scratch_bytes for each in members), default=0)


MEMORY = Limit("memory_limit", memory_need, lambda member: member.weights_bytes)
FAST_MEMORY = Limit("fast_memory_limit", fast_memory_need, lambda member: member.need_bytes)
SLOTS = Limit("fast_memory_limit", slots_need, lambda member: member.slot_bytes)


def excess(limit: Limit, members: Members, limit_bytes: int) -> str | None:
    """Returns a message with the excess over a limit and what to drop; None without an excess."""
    need_bytes = limit.need(members)
    over = need_bytes - limit_bytes
    if over <= 0:
        return None
    dropped = [
        f"{each.name} ({limit.size(each)})" for each in _to_drop(limit, members, limit_bytes)
    ]
    remedy = f"drop {' and '.join(dropped)} or " if dropped else ""
    return (
        f"{limit.key}: need {need_bytes} bytes, limit {limit_bytes}, over by {over}; "
        f"{remedy}raise {limit.key}."
    )


def _to_drop(limit: Limit, members: Members, limit_bytes: int) -> Members:
    """Returns a few members whose removal keeps the limit; none if all would have to go. If one
    member suffices, it is the smallest that does; otherwise those that save the most go first."""

    def need(dropped: Members) -> int:
        return limit.need([each for each in members if each not in dropped])

    dropped: list[MemberMemory] = []
    while (before := need(dropped)) > limit_bytes:
        saved = {each: before - need([*dropped, each]) for each in members if each not in dropped}
        order = {each: (bytes_, limit.size(each)) for each, bytes_ in saved.items()}
        enough = [each for each, bytes_ in saved.items() if bytes_ >= before - limit_bytes]
        dropped.append(
            min(enough, key=order.__getitem__) if enough else max(order, key=order.__getitem__)
        )
    for each in list(dropped):  # later ones may have made an earlier one unnecessary
        others = [other for other in dropped if other != each]
        if need(others) <= limit_bytes:
            dropped = others
    if len(members) > 1 and len(dropped) == len(members):
        return ()  # dropping all members is no remedy
    return [each for each in members if each in dropped]
