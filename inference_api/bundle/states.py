"""The states of all experts, the requests that wait for them, and the loader's tasks.

Decode thread only. This module keeps the state; `residency` has the rules that change it.
"""

import math
from collections.abc import Iterable, Mapping

from inference_api.bundle.fast_memory import FastMemory
from inference_api.bundle.members import (
    Effect,
    Eviction,
    Expert,
    Failure,
    LoadMember,
    MemberState,
    Needs,
    Policy,
    Unload,
)
from inference_api.core.input_queue import Waiting

UNLOADED = frozenset({MemberState.ABSENT, MemberState.PACKING, MemberState.ON_DISK})


class ExpertStates:
    """`effects` are those that were not handed out yet; `has_news` since it was last cleared."""

    def __init__(self, needs: Mapping[str, Needs], policy: Policy) -> None:
        self.by_name = {name: Expert(name, each) for name, each in needs.items()}
        self.pinned = [each for each in self.by_name.values() if each.needs.is_pinned]
        self.memory = FastMemory(policy.fast_memory_limit_bytes)
        self.ready: set[str] = set()  # the names of residents
        self.waiting: Mapping[str, Waiting] = {}
        self.at_loader: set[str] = set()  # names of experts whose Load or Unload is not answered
        self.effects: list[Effect] = []
        self.has_news = False
        self._load_timeout_s = policy.load_timeout_s
        self._loader_since_s = 0.0  # when it took up what it does now

    # --- changes --------------------------------------------------------------------------

    def become(self, expert: Expert, state: MemberState, reason: str = "") -> None:
        expert.state, expert.reason = state, reason
        if state is MemberState.RESIDENT:
            expert.asked_s = None
            self.ready.add(expert.name)
        else:
            self.ready.discard(expert.name)
        self.has_news = True

    def ask(self, expert: Expert, asked_s: float) -> None:
        if expert.asked_s is None:
            expert.asked_s = asked_s
            self.has_news = True

    def fail(self, expert: Expert, failure: Failure, reason: str) -> None:
        expert.failures[failure] += 1
        expert.asked_s = None
        self.become(expert, MemberState.FAILED, reason)

    def drain(self, expert: Expert, eviction: Eviction, now_s: float) -> None:
        assert expert.stay is not None
        expert.stay.left_s = now_s
        expert.eviction = eviction
        self.become(expert, MemberState.DRAINING)

    def spare(self, expert: Expert) -> None:
        """An expert that still drains, and not because an operator said so, need not leave."""
        is_leaving = expert.name in self.at_loader or expert.eviction is Eviction.OPERATOR
        if expert.state is MemberState.DRAINING and not is_leaving:
            assert expert.stay is not None
            expert.stay.left_s = math.inf
            self.become(expert, MemberState.RESIDENT)

    def send(self, effect: LoadMember | Unload, now_s: float) -> None:
        """To the loader."""
        if not self.at_loader:
            self._loader_since_s = now_s
        self.at_loader.add(effect.name)
        self.effects.append(effect)

    def answered(self, name: str, now_s: float) -> None:
        """Note that the loader has answered."""
        self.at_loader.discard(name)
        self._loader_since_s = now_s
        self.has_news = True

    # --- questions ------------------------------------------------------------------------

    def is_loader_overdue(self, now_s: float) -> bool:
        """Has the loader been at one thing for too long?"""
        return bool(self.at_loader) and now_s - self._loader_since_s > self._load_timeout_s

    def those(self, *states: MemberState) -> list[Expert]:
        return [each for each in self.by_name.values() if each.state in states]

    def unpinned(self) -> list[Expert]:
        """Returns the residents that are not pinned."""
        return [each for each in self.those(MemberState.RESIDENT) if not each.needs.is_pinned]

    def is_idle(self, expert: Expert) -> bool:
        return not expert.num_running and expert.name not in self.waiting

    def idle(self, experts: Iterable[Expert]) -> list[Expert]:
        """Returns those of `experts` that nobody uses, the least recently used first."""
        idle = [each for each in experts if self.is_idle(each)]
        return sorted(idle, key=lambda each: each.used_or_ready_s)

    def head_came_s(self, expert: Expert) -> float:
        """When the oldest who waits for it came, an operator included; `inf`: nobody waits."""
        waiting = self.waiting.get(expert.name)
        came_s = math.inf if waiting is None else waiting.oldest_came_s
        return came_s if expert.asked_s is None else min(came_s, expert.asked_s)
