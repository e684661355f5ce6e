"""Decides which experts of a bundle are in memory, and whose requests take the rows.

The decode thread owns it. It calls `advance` once per turn, hands the effects to a loader that
executes them one at a time, and reports its answers here. This module has no threads, I/O or clock.

    absent ─▶ packing ─▶ on_disk ─▶ loading ─▶ resident ─▶ draining ─▶ on_disk
                 └───────────────────┴──▶ failed

One expert at a time holds the *ticket*: it is loaded next, because its oldest waiting request (the
*head*) arrived before those of all other experts that are not in memory. A request waits at most

    patience + (requests waiting when it came + 1) * (residence + longest run + load timeout)

where residence is the larger of `min_residence_s` and `RESIDENCE_LOADS` times the last load.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference_api.bundle.fast_memory import needed_bytes
from inference_api.bundle.members import (
    Effect,
    EndRows,
    Eviction,
    Expert,
    Failure,
    LoadMember,
    MemberState,
    Needs,
    Policy,
    Refuse,
    ResidencySnapshot,
    Stay,
    Unload,
    UnloadMode,
)
from inference_api.bundle.row_shares import RowShares
from inference_api.bundle.states import UNLOADED, ExpertStates
from inference_api.core.input_queue import Waiting
from inference_api.errors import ExpertBusy, ExpertLoading, ExpertPinned
from inference_api.request import Switch

RESIDENCE_LOADS = 4  # an expert stays for at least so many times what its load took


@dataclass(slots=True)
class _Ticket:
    expert: Expert
    head_came_s: float
    issued_s: float
    from_name: str | None
    victims: list[Expert] = field(default_factory=list)
    is_loading: bool = False
    is_second_try: bool = False
    must_free_idle: bool = False  # before that one


class Residency:
    """The state of every expert. In a turn: report the loader's answers, call `advance`, carry out
    the effects, then start requests one after another in the `order`. Decode thread only."""

    def __init__(self, needs: Mapping[str, Needs], policy: Policy) -> None:
        assert all(1 <= each.rows_min <= each.rows_max for each in needs.values())
        assert sum(each.rows_min for each in needs.values()) <= policy.user_rows
        self._policy = policy
        self._states = ExpertStates(needs, policy)
        self._experts, self._memory = self._states.by_name, self._states.memory
        self._rows = RowShares(self._experts, policy.user_rows, self._memory)
        self._ticket: _Ticket | None = None
        self._arrived: list[Expert] = []  # who became resident since the last turn
        self._is_at_rest = True  # nothing to do as long as nobody wants who is not resident
        self._snapshot: ResidencySnapshot | None = None

    # --- a turn ---------------------------------------------------------------------------

    def advance(self, now_s: float, waiting: Mapping[str, Waiting]) -> Sequence[Effect]:
        """Returns the effects to carry out now, in this order.

        `waiting` has exactly the experts for which a request waits.
        """
        states = self._states
        states.waiting = waiting
        self._rows.begin_turn(waiting)
        if self._is_at_rest and not states.has_news and waiting.keys() <= states.ready:
            return ()
        self._protect_arrived()
        self._end_overdue(now_s)
        self._choose_ticket(now_s)
        self._serve_ticket(now_s)
        self._unload_drained(now_s)
        self._refuse_failed()
        self._settle(now_s)
        effects, states.effects = states.effects, []
        return effects

    def order(self) -> list[str]:
        """Returns the experts that may start a request, in their order. Ask after each start."""
        return self._rows.order()

    def started(self, name: str, now_s: float) -> None:
        """A request of this expert took a row; the caller has asked `order`."""
        self._rows.started(name)
        self._experts[name].last_used_s = now_s
        self._snapshot = None

    def ended(self, name: str, now_s: float) -> None:
        """A request of this expert gave its row back."""
        self._rows.ended(name)
        self._experts[name].last_used_s = now_s
        self._snapshot = None

    def switch_of(self, name: str, came_s: float) -> Switch | None:
        """Returns what a request that came then and starts now paid for the load of its expert;
        None where that was resident when it came."""
        return self._experts[name].switch(came_s)

    @property
    def is_settled(self) -> bool:
        """Whether it takes a request, the loader or an operator to change anything: while an
        expert waits to be loaded, or for its load, time does so too."""
        return self._ticket is None

    def snapshot(self) -> ResidencySnapshot:
        """Returns the same value until something has changed."""
        if self._snapshot is None or self._states.has_news:
            self._snapshot = ResidencySnapshot(
                used_bytes=self._memory.used_bytes,
                num_running=self._rows.num_running,
                loading_next=None if self._ticket is None else self._ticket.expert.name,
                experts={
                    name: expert.snapshot(is_held=name in self._memory.holders)
                    for name, expert in self._experts.items()
                },
            )
        return self._snapshot

    # --- what the loader answers ----------------------------------------------------------

    def packing(self, name: str) -> None:
        """The expert's packed file is being made, for a Load or before there is one."""
        expert = self._experts[name]
        if expert.state in UNLOADED or expert.state is MemberState.LOADING:
            self._states.become(expert, MemberState.PACKING)

    def loaded(self, name: str, now_s: float) -> None:
        """A Load is done, even if it was abandoned meanwhile or nobody waits for it."""
        expert = self._experts[name]
        assert name in self._states.at_loader, "no Load was issued"
        assert expert.stay is not None
        self._states.answered(name, now_s)
        self._drop_ticket(expert)
        expert.is_packed = True
        expert.stay.ready_s = now_s
        expert.num_loads += 1
        self._arrived.append(expert)
        self._states.become(expert, MemberState.RESIDENT)

    def load_failed(
        self, name: str, reason: str, now_s: float, failure: Failure = Failure.LOAD
    ) -> None:
        """A Load, or the packing before it, failed. After the first MEMORY of a load, which it
        has given back, it is tried once more without those that are idle."""
        expert, ticket, is_loading = self._experts[name], self._ticket, False
        self._states.answered(name, now_s)
        self._memory.release(expert)
        if ticket is not None and ticket.expert is expert:
            is_loading, ticket.is_loading = ticket.is_loading, False
            if is_loading and failure is Failure.MEMORY and not ticket.is_second_try:
                ticket.is_second_try = ticket.must_free_idle = True
                self._states.become(expert, expert.unloaded_state)
                return
        if is_loading or expert.state is MemberState.PACKING:
            self._fail(expert, failure, reason)
        elif expert.state is MemberState.FAILED:  # it was given up; now it is known why
            self._states.become(expert, MemberState.FAILED, reason)
        # Otherwise it was given up, and somebody has asked for another try since.

    def unloaded(self, name: str, now_s: float) -> None:
        expert = self._experts[name]
        assert name in self._states.at_loader, "no Unload was issued"
        self._states.answered(name, now_s)
        self._memory.release(expert)
        self._states.become(expert, expert.unloaded_state)

    def source_changed(self, name: str) -> None:
        """The expert's files have changed, so a failed load may succeed now."""
        expert = self._experts[name]
        expert.is_packed = False
        if expert.state in (MemberState.FAILED, MemberState.ON_DISK):
            self._states.become(expert, MemberState.ABSENT)

    # --- what operators ask ---------------------------------------------------------------

    def ask_load(self, name: str, now_s: float) -> bool:
        """Load this expert as if a request had arrived for it, even if it failed before. Returns
        whether it is resident; asking again changes nothing."""
        expert = self._experts[name]
        if expert.state is MemberState.FAILED:
            self._states.become(expert, expert.unloaded_state)
        is_resident = expert.state is MemberState.RESIDENT
        if not is_resident and not self._is_loading(expert):
            self._states.ask(expert, now_s)
        return is_resident

    def ask_unload(self, name: str, mode: UnloadMode, now_s: float) -> None:
        """Unload this expert: only if it is idle, after its rows have ended, or at once, for which
        `advance` returns an EndRows. Requests that wait for it have it loaded again.

        Raises ExpertPinned, ExpertLoading, ExpertBusy.
        """
        expert, states = self._experts[name], self._states
        if expert.needs.is_pinned:
            raise ExpertPinned(name)
        if self._is_loading(expert):
            raise ExpertLoading(name)
        if (
            expert.state is MemberState.RESIDENT
            and mode is UnloadMode.IDLE
            and not states.is_idle(expert)
        ):
            raise ExpertBusy(name, expert.num_running, self._rows.num_waiting(name))
        expert.asked_s = None
        if expert.state in (MemberState.RESIDENT, MemberState.DRAINING):
            states.drain(expert, Eviction.OPERATOR, now_s)
        if mode is UnloadMode.FORCE and expert.num_running:
            states.effects.append(EndRows(name))

    # --- the ticket -----------------------------------------------------------------------

    def _choose_ticket(self, now_s: float) -> None:
        """Kept while its head waits and, whoever waits, while it is being loaded."""
        ticket, states = self._ticket, self._states
        if ticket is not None and not ticket.is_loading:
            if states.head_came_s(ticket.expert) == ticket.head_came_s:
                return
            self._drop_ticket(ticket.expert)
        while self._ticket is None:
            expert = min(states.those(*UNLOADED), key=states.head_came_s, default=None)
            if expert is None or (head_came_s := states.head_came_s(expert)) == math.inf:
                return
            over_bytes = needed_bytes({*states.pinned, expert}) - self._memory.limit_bytes
            if over_bytes > 0:
                reason = f"fast_memory_limit leaves it {over_bytes} bytes less than it needs"
                self._fail(expert, Failure.TOO_LARGE, reason)
            else:
                self._ticket = _Ticket(expert, head_came_s, now_s, self._rows.last_to_start)

    def _serve_ticket(self, now_s: float) -> None:
        ticket, states = self._ticket, self._states
        if ticket is None or ticket.is_loading or states.is_loader_overdue(now_s):
            return
        if ticket.must_free_idle:
            ticket.must_free_idle = False
            self._evict(ticket, states.idle(states.unpinned()), Eviction.MEMORY, now_s)
        elif not self._memory.has_room_for(ticket.expert):
            self._make_room(ticket, now_s)
        elif not states.at_loader:
            self._load(ticket, now_s)

    def _make_room(self, ticket: _Ticket, now_s: float) -> None:
        """Drain the fewest that make room: idle ones or, once the head has waited too long, also
        those whose waiters are all younger."""
        memory, states, staying = self._memory, self._states, self._memory.staying()
        borrowed_bytes = sum([each.borrowed_bytes for each in staying])
        # Rows that borrowed end, and none borrows meanwhile: who has drained others relies on it.
        if memory.has_room_beside(ticket.expert, staying, 0 if ticket.victims else borrowed_bytes):
            return
        leaving = [each for each in states.unpinned() if each.protected_until_s <= now_s]
        idle = states.idle(leaving)
        victims = memory.fewest_to_leave(ticket.expert, idle, borrowed_bytes)
        if not victims and now_s - ticket.head_came_s > self._policy.patience_s:
            others = [each for each in leaving if states.head_came_s(each) > ticket.head_came_s]
            busy = [each for each in others if each not in idle]
            busy.sort(key=lambda each: each.ready_s)
            victims = memory.fewest_to_leave(ticket.expert, [*idle, *busy], 0)
        for victim in victims:
            eviction = Eviction.IDLE if victim in idle else Eviction.PATIENCE
            self._evict(ticket, [victim], eviction, now_s)

    def _evict(
        self, ticket: _Ticket, victims: Sequence[Expert], eviction: Eviction, now_s: float
    ) -> None:
        for victim in victims:
            self._states.drain(victim, eviction, now_s)
            ticket.victims.append(victim)

    def _load(self, ticket: _Ticket, now_s: float) -> None:
        expert = ticket.expert
        ticket.is_loading = True
        self._spare_victims(ticket)
        if expert.ready_s < math.inf:
            expert.earlier_stay = expert.stay
        expert.stay = Stay(ticket.head_came_s, ticket.issued_s, now_s, ticket.from_name)
        self._memory.hold(expert)
        self._states.become(expert, MemberState.LOADING)
        self._states.send(LoadMember(expert.name), now_s)

    def _drop_ticket(self, expert: Expert) -> None:
        """If it is this expert's."""
        ticket = self._ticket
        if ticket is not None and ticket.expert is expert:
            self._ticket = None
            self._spare_victims(ticket)

    def _spare_victims(self, ticket: _Ticket) -> None:
        for victim in ticket.victims:
            self._states.spare(victim)
        ticket.victims.clear()

    def _end_overdue(self, now_s: float) -> None:
        """Tell who waits for a loader that does not answer, which it may do later."""
        ticket, timeout_s = self._ticket, self._policy.load_timeout_s
        if ticket is None or not self._states.is_loader_overdue(now_s):
            return
        if ticket.is_loading:
            reason = f"it was not loaded within load_timeout_s={timeout_s:g}"
            self._fail(ticket.expert, Failure.TIMEOUT, reason)
        elif now_s - ticket.issued_s > timeout_s:
            # Nothing is wrong with this one: the next request for it has another try.
            reason = f"a load before it took longer than load_timeout_s={timeout_s:g}"
            ticket.expert.asked_s = None
            self._states.effects.append(Refuse(ticket.expert.name, reason))
            self._drop_ticket(ticket.expert)

    # --- parts ----------------------------------------------------------------------------

    def _protect_arrived(self) -> None:
        """Who was awaited stays for a while; a load that nobody awaits protects nobody."""
        for expert in self._arrived:
            assert expert.stay is not None
            load_s = expert.stay.ready_s - expert.stay.issued_s
            residence_s = max(self._policy.min_residence_s, RESIDENCE_LOADS * load_s)
            is_awaited = expert.name in self._states.waiting
            expert.protected_until_s = expert.ready_s + (residence_s if is_awaited else 0.0)
        self._arrived.clear()

    def _unload_drained(self, now_s: float) -> None:
        for expert in self._states.those(MemberState.DRAINING):
            if not expert.num_running and expert.name not in self._states.at_loader:
                expert.evictions[expert.eviction] += 1
                self._states.send(Unload(expert.name), now_s)

    def _refuse_failed(self) -> None:
        for name in self._states.waiting:
            expert = self._experts[name]
            if expert.state is MemberState.FAILED:
                self._states.effects.append(Refuse(name, expert.reason))

    def _settle(self, now_s: float) -> None:
        """What follows from this turn for the rows, and for the next turn."""
        states, ticket = self._states, self._ticket
        sure = states.those(MemberState.RESIDENT)
        if ticket is not None:
            sure.append(ticket.expert)
        waits_for_room = ticket is not None and not ticket.is_loading
        self._rows.owe(sure)
        self._rows.may_borrow = not waits_for_room or states.is_loader_overdue(now_s)
        self._is_at_rest = ticket is None and not states.at_loader
        self._is_at_rest &= not states.those(MemberState.DRAINING)
        states.has_news = False
        self._snapshot = None

    def _fail(self, expert: Expert, failure: Failure, reason: str) -> None:
        self._states.fail(expert, failure, reason)
        self._drop_ticket(expert)

    def _is_loading(self, expert: Expert) -> bool:
        ticket = self._ticket
        return ticket is not None and ticket.expert is expert and ticket.is_loading
