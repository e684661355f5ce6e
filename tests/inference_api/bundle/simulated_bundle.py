"""A bundle without models: requests, user rows and a loader, all on a clock that turns move.

After every turn it is checked what has to hold whatever happens.
"""

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from inference_api.bundle.members import (
    Effect,
    EndRows,
    Eviction,
    Failure,
    LoadMember,
    MemberState,
    Needs,
    Policy,
    Refuse,
    Unload,
)
from inference_api.bundle.residency import RESIDENCE_LOADS, Residency
from inference_api.core.input_queue import Waiting
from inference_api.request import Switch

NEEDS = Needs(
    weights_bytes=90, other_bytes=8, guaranteed_bytes=2, row_bytes=1, rows_min=2, rows_max=16
)  # 100 bytes with two rows
POLICY = Policy(
    fast_memory_limit_bytes=220,  # two members and 20 rows
    user_rows=32,
    patience_s=10,
    min_residence_s=2,
    load_timeout_s=120,
)


@dataclass(eq=False)
class Request:
    name: str
    arrived_s: float
    run_s: float
    num_waiting_before: int
    started_s: float | None = None
    end: str = ""  # "done", "cancelled", "cut" or why it was refused
    switch: Switch | None = None


@dataclass
class LoadOutcome:
    took_s: float
    failure: Failure | None = None


class SimulatedBundle:
    """`load_s` and `outcomes` (the next loads, by member) say what its loader does; a load that
    takes `inf` ends when `load_s` of its member is changed."""

    def __init__(self, needs: Mapping[str, Needs], policy: Policy, turn_s: float = 0.25) -> None:
        self.needs, self.policy, self.turn_s = needs, policy, turn_s
        self.residency = Residency(needs, policy)
        self.now_s = 100.0
        self.load_s = dict.fromkeys(needs, 1.0)
        self.unload_s = 0.25
        self.outcomes: dict[str, deque[LoadOutcome]] = {name: deque() for name in needs}
        self.queues: dict[str, list[Request]] = {name: [] for name in needs}
        self.running: list[Request] = []
        self.requests: list[Request] = []
        self.effects: list[Effect] = []  # of all turns
        self.longest_load_s = 0.0
        self._num_came = 0  # since the last turn
        self._at_loader: deque[Effect] = deque()
        self._taken_up_s = 0.0
        self._issued_s: dict[str, float] = {}
        self._protected_until_s: dict[str, float] = {}
        self._holds: set[str] = set()
        self._is_short = False  # of memory, as a load found in this turn

    # --- what others do -------------------------------------------------------------------

    def ask(self, name: str, run_s: float = 1.0) -> Request:
        num_before = sum(map(len, self.queues.values()))
        self._num_came += 1
        arrived_s = self.now_s + 1e-9 * self._num_came  # nobody comes with another
        request = Request(name, arrived_s, run_s, num_before)
        self.queues[name].append(request)
        self.requests.append(request)
        return request

    def cancel(self, request: Request) -> None:
        if request in self.queues[request.name]:
            self.queues[request.name].remove(request)
            request.end = "cancelled"
        elif request in self.running:
            self._end(request, "cancelled")

    def state(self, name: str) -> MemberState:
        return self.residency.snapshot().members[name].state

    def states(self) -> dict[str, MemberState]:
        return {name: each.state for name, each in self.residency.snapshot().members.items()}

    def num_evictions(self) -> Counter[Eviction]:
        members = self.residency.snapshot().members.values()
        return sum((Counter(each.evictions) for each in members), Counter())

    def names(self, kind: type[LoadMember] | type[Unload] | type[Refuse]) -> list[str]:
        return [each.name for each in self.effects if isinstance(each, kind)]

    def waiting(self) -> dict[str, Waiting]:
        return {
            name: Waiting(len(queue), queue[0].arrived_s, is_closed=False)
            for name, queue in self.queues.items()
            if queue
        }

    # --- time -----------------------------------------------------------------------------

    def run(self, for_s: float) -> None:
        for _ in range(round(for_s / self.turn_s)):
            self.turn()

    def run_until_served(self, *requests: Request, at_most_s: float = 1000.0) -> None:
        until_s = self.now_s + at_most_s
        while any(each.started_s is None and not each.end for each in requests):
            assert self.now_s < until_s, "somebody waits for ever"
            self.turn()

    def turn(self) -> list[Effect]:
        self.now_s += self.turn_s
        self._num_came = 0
        for request in list(self.running):
            assert request.started_s is not None
            if self.now_s >= request.started_s + request.run_s:
                self._end(request, "done")
        arrived = self._loader_works()
        states_before = self.states()
        effects = list(self.residency.advance(self.now_s, self.waiting()))
        for name in arrived:
            residence_s = self._residence_s(name) if self.queues[name] else 0.0
            self._protected_until_s[name] = self.now_s + residence_s
        self._check_victims(states_before)
        for effect in effects:
            self._carry_out(effect)
        self.effects += effects
        self._start()
        self._check()
        return effects

    # --- parts ----------------------------------------------------------------------------

    def _residence_s(self, name: str) -> float:
        load_s = self.now_s - self._issued_s[name]
        return max(self.policy.min_residence_s, RESIDENCE_LOADS * load_s)

    def _loader_works(self) -> list[str]:
        """Returns who came into memory."""
        arrived = []
        self._is_short = False
        while self._at_loader:
            effect = self._at_loader[0]
            outcome = self._outcome(effect)
            if self.now_s < self._taken_up_s + outcome.took_s:
                break
            self._at_loader.popleft()
            self._taken_up_s = self.now_s
            self._answer(effect, outcome.failure)
            if isinstance(effect, LoadMember) and outcome.failure is None:
                arrived.append(effect.name)
        return arrived

    def _outcome(self, effect: Effect) -> LoadOutcome:
        if isinstance(effect, Unload):
            return LoadOutcome(self.unload_s)
        outcomes = self.outcomes[effect.name]
        return outcomes[0] if outcomes else LoadOutcome(self.load_s[effect.name])

    def _answer(self, effect: Effect, failure: Failure | None) -> None:
        name = effect.name
        if isinstance(effect, Unload):
            self._holds.remove(name)
            self.residency.unloaded(name, self.now_s)
            return
        self.longest_load_s = max(self.longest_load_s, self.now_s - self._issued_s[name])
        if self.outcomes[name]:
            self.outcomes[name].popleft()
        if failure is None:
            self.residency.loaded(name, self.now_s)
        else:
            self._is_short = failure is Failure.MEMORY
            self._holds.remove(name)
            self.residency.load_failed(name, "no luck", self.now_s, failure)

    def _carry_out(self, effect: Effect) -> None:
        name = effect.name
        if isinstance(effect, Refuse):
            assert self.queues[name], "whom nobody awaits has nobody to refuse"
            for request in self.queues[name]:
                request.end = effect.reason
            self.queues[name].clear()
        elif isinstance(effect, EndRows):
            for request in [each for each in self.running if each.name == name]:
                self._end(request, "cut")
        else:
            if isinstance(effect, LoadMember):
                assert name not in self._holds, "it is there"
                assert not self._at_loader, "it waits for nothing but its load"
                self._holds.add(name)
                self._issued_s[name] = self.now_s
            else:
                assert name in self._holds, "nothing to unload"
                assert all(each.name != name for each in self.running)
            if not self._at_loader:
                self._taken_up_s = self.now_s
            self._at_loader.append(effect)

    def _start(self) -> None:
        residency = self.residency
        while names := residency.order():
            name = names[0]
            assert all(map(residency.may_start, names))
            request = self.queues[name].pop(0)
            residency.started(name, self.now_s)
            request.started_s = self.now_s
            request.switch = residency.switch_of(name, request.arrived_s)
            self.running.append(request)

    def _end(self, request: Request, end: str) -> None:
        self.running.remove(request)
        request.end = end
        self.residency.ended(request.name, self.now_s)

    # --- what holds -----------------------------------------------------------------------

    def _check_victims(self, states_before: Mapping[str, MemberState]) -> None:
        for name, state in self.states().items():
            if state is MemberState.DRAINING and states_before[name] is not MemberState.DRAINING:
                assert states_before[name] is MemberState.RESIDENT, "a victim is in memory"
                assert not self.needs[name].is_pinned
                is_protected = self.now_s < self._protected_until_s[name]
                assert not is_protected or self._is_short

    def _check(self) -> None:
        num_running = Counter(each.name for each in self.running)
        snapshot = self.residency.snapshot()
        assert sum(num_running.values()) <= self.policy.user_rows
        assert all(num <= self.needs[name].rows_max for name, num in num_running.items())
        assert all(num_running[name] == each.num_running for name, each in snapshot.members.items())
        weights: dict[Hashable, int] = {}
        num_bytes = 0
        for name in self._holds:
            needs = self.needs[name]
            weights |= {name: needs.weights_bytes - sum(needs.shared.values()), **needs.shared}
            num_beyond = max(0, num_running[name] - needs.rows_min)
            num_bytes += needs.other_bytes + needs.guaranteed_bytes + num_beyond * needs.row_bytes
        assert snapshot.used_bytes == num_bytes + sum(weights.values())
        assert snapshot.used_bytes <= self.policy.fast_memory_limit_bytes
        assert all(name in self._holds for name in num_running)
        for request in self.running:
            if request.started_s == self.now_s and request.switch is not None:
                self._check_switch(request, request.switch)

    def _check_switch(self, request: Request, switch: Switch) -> None:
        assert min(switch.wait_s, switch.evict_s, switch.load_s) >= 0
        assert switch.from_name is None or switch.from_name in self.needs
        waited_s = self.now_s - request.arrived_s
        assert 0 < switch.switching_time_s <= waited_s + 1e-6
        assert not switch.is_initiator or switch.wait_s < waited_s

    def check_bound(self, request: Request) -> None:
        """How long it may have waited, by what loads and runs took; a turn takes time as well."""
        policy = self.policy
        longest_run_s = max(each.run_s for each in self.requests)
        residence_s = max(policy.min_residence_s, RESIDENCE_LOADS * self.longest_load_s)
        change_s = self.longest_load_s + len(self.needs) * self.unload_s + 8 * self.turn_s
        num_before = request.num_waiting_before + 1
        bound_s = policy.patience_s + num_before * (residence_s + longest_run_s + change_s)
        bound_s += change_s  # of a load whose waiters left
        assert request.started_s is not None
        assert request.started_s - request.arrived_s <= bound_s

    def check_all_ended(self) -> None:
        assert all(each.end for each in self.requests), "somebody is lost"
        snapshot = self.residency.snapshot()
        resting = {
            MemberState.ABSENT,
            MemberState.ON_DISK,
            MemberState.RESIDENT,
            MemberState.FAILED,
        }
        assert snapshot.loading_next is None
        assert self.residency.is_settled
        assert snapshot.num_running == 0
        assert {each.state for each in snapshot.members.values()} <= resting
        assert self.residency.advance(self.now_s, {}) == ()


def bundle(names: str = "abc", policy: Policy = POLICY, **special: Needs) -> SimulatedBundle:
    """Members of one letter each; all need NEEDS unless it is said otherwise."""
    return SimulatedBundle({name: special.get(name, NEEDS) for name in names}, policy)


def with_residents(
    residents: str, names: str = "abc", policy: Policy = POLICY, **special: Needs
) -> SimulatedBundle:
    """These have served a request each, one after the other, and are past their residence."""
    simulated = bundle(names, policy, **special)
    for name in residents:
        simulated.run_until_served(simulated.ask(name))
    simulated.run(6)
    assert [name for name in names if simulated.state(name) is MemberState.RESIDENT] == sorted(
        residents
    )
    simulated.effects.clear()
    return simulated
