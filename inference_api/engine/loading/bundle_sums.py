"""The memory of a bundle's experts together, and remedies if it is too much. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Key = tuple[str, str]  # folder or file of weights, and their quantisation: packed once


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of an expert: its model, its draft, or its Medusa heads."""

    key: Key
    weights_bytes: int
    cache_bytes_per_row: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Memory of one expert; `as_int4` is its memory with int4, if that is less."""

    name: str
    pieces: tuple[Piece, ...]
    rows_min: int
    is_pinned: bool
    scratch_bytes: int  # of a step; all share that of the largest
    as_int4: "Taken | None" = None

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
        """Cache of its guaranteed rows."""
        return self.rows_min * self.cache_bytes_per_row

    @property
    def need_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes


Experts = Sequence[Taken]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit by its key in the file: how much experts need together, and one of them alone."""

    key: str
    need: Callable[[Experts], int]
    size: Callable[[Taken], int]


def memory_need(experts: Experts) -> int:
    """Bytes of all weights; those that several experts have in common count once."""
    return sum(_weights_of(experts).values())


def fast_memory_need(experts: Experts) -> int:
    """Bytes that are needed to load every expert at some time: for the pinned ones, the largest
    other one, and a step."""
    pinned = [each for each in experts if each.is_pinned]
    held = _weights_of(pinned)
    others = [
        each.cache_bytes + sum(size for key, size in each.weights_by_key.items() if key not in held)
        for each in experts
        if not each.is_pinned
    ]
    scratch = max((each.scratch_bytes for each in experts), default=0)
    return (
        sum(held.values())
        + sum(each.cache_bytes for each in pinned)
        + max(others, default=0)
        + scratch
    )


MEMORY = Limit("memory_limit", memory_need, lambda one: one.weights_bytes)
FAST_MEMORY = Limit("fast_memory_limit", fast_memory_need, lambda one: one.need_bytes)


def excess(limit: Limit, experts: Experts, limit_bytes: int) -> str | None:
    """A message with the excess over a limit, and what to drop or shrink; None if there is no
    excess."""
    need_bytes = limit.need(experts)
    over = need_bytes - limit_bytes
    if over <= 0:
        return None
    remedies = []
    if dropped := _changes(limit, experts, limit_bytes, {each.name: None for each in experts}):
        remedies.append("drop " + _joined(f"{each.name} ({limit.size(each)})" for each in dropped))
    packed = {each.name: each.as_int4 for each in experts if each.as_int4 is not None}
    if shrunk := _changes(limit, experts, limit_bytes, packed):
        saved = {each.name: limit.size(each) - limit.size(packed[each.name]) for each in shrunk}
        remedies.append("int4 for " + _joined(f"{n} (saves {size})" for n, size in saved.items()))
    remedies.append(f"raise {limit.key}")
    return (
        f"{limit.key}: need {need_bytes} bytes, limit {limit_bytes}, over by {over}; "
        f"{', '.join(remedies[:-1])}{' or ' * (len(remedies) > 1)}{remedies[-1]}."
    )


def _weights_of(experts: Experts) -> dict[Key, int]:
    return {key: size for each in experts for key, size in each.weights_by_key.items()}


Changes = Mapping[str, Taken | None]  # what is in the place of experts of a name; None: nothing


def _changes(limit: Limit, experts: Experts, limit_bytes: int, possible: Changes) -> Experts:
    """Returns a small set of experts whose change keeps the limit; empty if all would not suffice.

    If one alone suffices, it is the smallest such expert; otherwise the largest savings go first.
    """
    made: dict[str, Taken | None] = {}
    while (before := limit.need(_after(made, experts))) > limit_bytes:
        savings = {
            name: before - limit.need(_after({**made, name: change}, experts))
            for name, change in possible.items()
            if name not in made
        }
        savings = {name: saved for name, saved in savings.items() if saved >= 0}
        if not savings:
            return ()
        enough = [name for name, saved in savings.items() if saved >= before - limit_bytes]
        own = {each.name: limit.size(each) for each in experts}
        name = (
            min(enough, key=lambda name: (savings[name], own[name]))
            if enough
            else max(savings, key=lambda name: (savings[name], own[name]))
        )
        made[name] = possible[name]
    for name in list(made):  # a later change may have made an earlier one needless
        others = {other: change for other, change in made.items() if other != name}
        if limit.need(_after(others, experts)) <= limit_bytes:
            made = others
    if len(experts) > 1 and not _after(made, experts):
        return ()  # dropping all is no remedy
    return [each for each in experts if each.name in made]


def _after(changes: Changes, experts: Experts) -> list[Taken]:
    after = (changes.get(each.name, each) for each in experts)
    return [each for each in after if each is not None]


def _joined(names: Iterable[str]) -> str:
    return " and ".join(names)
