"""The states of all members, the memory that they share, the requests that wait for them, and the
loader's tasks.

Decode thread only. This module keeps the state; `residency` has the rules by which it changes.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

from inference_api.bundle.members import (
    Effect,
    Eviction,
    LoadMember,
    Member,
    MemberState,
    Needs,
    Policy,
    Unload,
)
from inference_api.core.input_queue import Waiting

UNLOADED = frozenset({MemberState.ABSENT, MemberState.PACKING, MemberState.ON_DISK})


class MemberStates:
    """The state of the bundle. `effects` are not handed out yet. Every change sets `has_news`.

    A loaded member holds its weights and the cache of its guaranteed rows. Memory that its rows
    take beyond these is borrowed.
    """

    def __init__(self, needs: Mapping[str, Needs], policy: Policy) -> None:
        self.policy = policy
        self.by_name = {name: Member(name, each) for name, each in needs.items()}
        self.pinned = [each for each in self.by_name.values() if each.needs.is_pinned]
        self.ready: set[str] = set()  # names of members that are RESIDENT
        self.waiting: Mapping[str, Waiting] = {}
        self.last_to_start: str | None = None
        self.holders: dict[str, Member] = {}
        self.borrowed_bytes = 0
        self._held_bytes = 0
        self.at_loader: set[str] = set()  # names of members with an unanswered Load or Unload
        self.effects: list[Effect] = []
        self.has_news = False
        self._loader_since_s = 0.0  # when the loader began its current task

    # --- changes --------------------------------------------------------------------------

    def become(self, member: Member, state: MemberState, reason: str = "") -> None:
        member.state, member.reason = state, reason
        if state is MemberState.RESIDENT:
            member.requested_s = None
            self.ready.add(member.name)
        else:
            self.ready.discard(member.name)
        self.has_news = True

    def drain(self, member: Member, eviction: Eviction, now_s: float) -> None:
        assert member.stay is not None
        member.stay.left_s = now_s
        member.eviction = eviction
        self.become(member, MemberState.DRAINING)

    def spare(self, member: Member) -> None:
        """Keep a member that is draining, unless its unload was issued or an operator wants it."""
        is_leaving = member.name in self.at_loader or member.eviction is Eviction.OPERATOR
        if member.state is MemberState.DRAINING and not is_leaving:
            assert member.stay is not None
            member.stay.left_s = math.inf
            self.become(member, MemberState.RESIDENT)

    def send(self, effect: LoadMember | Unload, now_s: float) -> None:
        """Hand an effect to the loader."""
        if not self.at_loader:
            self._loader_since_s = now_s
        self.at_loader.add(effect.name)
        self.effects.append(effect)

    def answered(self, name: str, now_s: float) -> None:
        """Note that the loader has answered an effect."""
        self.at_loader.discard(name)
        self._loader_since_s = now_s
        self.has_news = True

    def hold(self, member: Member) -> None:
        self.holders[member.name] = member
        self._held_bytes = needed_bytes(self.holders.values())

    def release(self, member: Member) -> None:
        self.holders.pop(member.name, None)
        self._held_bytes = needed_bytes(self.holders.values())

    # --- memory ---------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        return self._held_bytes + self.borrowed_bytes

    @property
    def free_bytes(self) -> int:
        return self.policy.fast_memory_limit_bytes - self.used_bytes

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
        taken_bytes = needed_bytes([newcomer, *others]) + borrowed_bytes
        return taken_bytes <= self.policy.fast_memory_limit_bytes

    def fewest_to_leave(
        self, newcomer: Member, candidates: Sequence[Member], borrowed_bytes: int
    ) -> list[Member]:
        """Returns the first of `candidates` that together make room for `newcomer` if unloaded,
        without needless ones; empty if even all of them do not suffice."""
        staying = self.staying()

        def is_enough(leaving: Iterable[Member]) -> bool:
            leaving_members = set(leaving)
            others = [each for each in staying if each not in leaving_members]
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

    # --- questions ------------------------------------------------------------------------

    def is_loader_overdue(self, now_s: float) -> bool:
        """Returns whether the loader has exceeded `load_timeout_s` with its current task."""
        return bool(self.at_loader) and now_s - self._loader_since_s > self.policy.load_timeout_s

    def in_state(self, *states: MemberState) -> list[Member]:
        return [each for each in self.by_name.values() if each.state in states]

    def unpinned(self) -> list[Member]:
        """Returns the loaded members that are not pinned."""
        return [each for each in self.in_state(MemberState.RESIDENT) if not each.needs.is_pinned]

    def is_idle(self, member: Member) -> bool:
        return not member.num_running and member.name not in self.waiting

    def idle(self, members: Iterable[Member]) -> list[Member]:
        """Returns the idle ones of `members`, the least recently used first."""
        idle = [each for each in members if self.is_idle(each)]
        return sorted(idle, key=lambda each: each.used_or_ready_s)

    def head_arrived_s(self, member: Member) -> float:
        """Returns when the member's oldest waiting request, or an operator's, came; else `inf`."""
        waiting = self.waiting.get(member.name)
        arrived_s = math.inf if waiting is None else waiting.oldest_arrived_s
        return arrived_s if member.requested_s is None else min(arrived_s, member.requested_s)


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
