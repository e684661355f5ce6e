"""The memory that members share: how much each of them holds, and which ones to unload for room.

Decode thread only; changed only through `residency`.
"""

from collections.abc import Hashable, Iterable, Sequence

from inference_api.bundle.members import Member, MemberState


class FastMemory:
    """Counts memory. A loaded member holds its weights and the cache of its guaranteed rows. Memory
    that its rows take beyond these is borrowed."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.holders: dict[str, Member] = {}
        self.borrowed_bytes = 0
        self._held_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._held_bytes + self.borrowed_bytes

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    def lend(self, member: Member, num_bytes: int) -> None:
        """Set the bytes of a member's pages beyond those of its guaranteed rows."""
        self.borrowed_bytes += num_bytes - member.lent_bytes
        member.lent_bytes = num_bytes

    def hold(self, member: Member) -> None:
        self.holders[member.name] = member
        self._held_bytes = needed_bytes(self.holders.values())

    def release(self, member: Member) -> None:
        self.holders.pop(member.name, None)
        self._held_bytes = needed_bytes(self.holders.values())

    def staying(self) -> list[Member]:
        """Returns the holders that are not draining."""
        return [each for each in self.holders.values() if each.state is not MemberState.DRAINING]

    def has_room_for(self, newcomer: Member) -> bool:
        """Returns whether there is room for a member now."""
        return self.has_room_beside(newcomer, self.holders.values(), self.borrowed_bytes)

    def has_room_beside(
        self, newcomer: Member, others: Iterable[Member], borrowed_bytes: int
    ) -> bool:
        """Returns whether there would be room if `others` were the only other holders, and rows had
        borrowed `borrowed_bytes`."""
        return needed_bytes([newcomer, *others]) + borrowed_bytes <= self.limit_bytes

    def fewest_to_leave(
        self, newcomer: Member, candidates: Sequence[Member], borrowed_bytes: int
    ) -> list[Member]:
        """Returns the first of `candidates` that together make room for `newcomer` if unloaded,
        without needless ones; empty if even all of them do not suffice."""
        staying = self.staying()

        def is_enough(leaving: Iterable[Member]) -> bool:
            gone = set(leaving)
            others = [each for each in staying if each not in gone]
            return self.has_room_beside(newcomer, others, borrowed_bytes)

        if not is_enough(candidates):
            return []
        chosen: list[Member] = []
        for candidate in candidates:
            if is_enough(chosen):
                break
            chosen.append(candidate)
        for each in reversed(chosen[:-1]):  # a later one may free so much that an earlier can stay
            without = [other for other in chosen if other is not each]
            chosen = without if is_enough(without) else chosen
        return chosen


def needed_bytes(members: Iterable[Member]) -> int:
    """Returns the bytes that these members hold together. Shared weights count once."""
    shared: dict[Hashable, int] = {}
    num_bytes = 0
    for member in members:
        needs = member.needs
        num_bytes += needs.other_bytes + needs.guaranteed_bytes + needs.weights_bytes
        num_bytes -= sum(needs.shared.values())
        shared |= needs.shared
    return num_bytes + sum(shared.values())
