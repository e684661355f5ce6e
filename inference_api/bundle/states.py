"""The states of all members, the requests that wait for them, and the loader's tasks.

Decode thread only. This module keeps the state; `residency` has the rules by which it changes.
"""

import math
from collections.abc import Iterable, Mapping

from inference_api.bundle.fast_memory import FastMemory
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
    """The state of the bundle. `effects` are not handed out yet. Every change sets `has_news`."""

    def __init__(self, needs: Mapping[str, Needs], policy: Policy) -> None:
        self.policy = policy
        self.by_name = {name: Member(name, each) for name, each in needs.items()}
        self.pinned = [each for each in self.by_name.values() if each.needs.is_pinned]
        self.memory = FastMemory(policy.fast_memory_limit_bytes)
        self.ready: set[str] = set()  # names of members that are RESIDENT
        self.waiting: Mapping[str, Waiting] = {}
        self.at_loader: set[str] = set()  # names of members with an unanswered Load or Unload
        self.effects: list[Effect] = []
        self.has_news = False
        self._loader_since_s = 0.0  # when the loader began its current task

    # --- changes --------------------------------------------------------------------------

    def become(self, member: Member, state: MemberState, reason: str = "") -> None:
        member.state, member.reason = state, reason
        if state is MemberState.RESIDENT:
            member.asked_s = None
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

    # --- questions ------------------------------------------------------------------------

    def is_loader_overdue(self, now_s: float) -> bool:
        """Returns whether the loader has exceeded `load_timeout_s` with its current task."""
        return bool(self.at_loader) and now_s - self._loader_since_s > self.policy.load_timeout_s

    def those(self, *states: MemberState) -> list[Member]:
        return [each for each in self.by_name.values() if each.state in states]

    def unpinned(self) -> list[Member]:
        """Returns the loaded members that are not pinned."""
        return [each for each in self.those(MemberState.RESIDENT) if not each.needs.is_pinned]

    def is_idle(self, member: Member) -> bool:
        return not member.num_running and member.name not in self.waiting

    def idle(self, members: Iterable[Member]) -> list[Member]:
        """Returns the idle ones of `members`, the least recently used first."""
        idle = [each for each in members if self.is_idle(each)]
        return sorted(idle, key=lambda each: each.used_or_ready_s)

    def head_came_s(self, member: Member) -> float:
        """Returns when the member's oldest waiting request, or an operator's, came; else `inf`."""
        waiting = self.waiting.get(member.name)
        came_s = math.inf if waiting is None else waiting.oldest_came_s
        return came_s if member.asked_s is None else min(came_s, member.asked_s)
