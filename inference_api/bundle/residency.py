"""Decides which members of a bundle are in memory, and whose requests take the rows.

The decode thread owns the state. It calls `advance` once per turn, hands the effects to a loader
that executes them one at a time, and reports the results here. This module has no threads, I/O or
clock.

    absent ─▶ packing ─▶ on_disk ─▶ loading ─▶ resident ─▶ draining ─▶ on_disk
                 └───────────────────┴──▶ failed

One member at a time holds the *ticket*: it is loaded next, because its oldest waiting request (the
*head*) arrived before those of all other members that are not in memory. A request waits at most

    patience + (requests waiting when it came + 1) * (residence + longest run + load timeout)

where residence is the larger of `min_residence_s` and `RESIDENCE_LOADS` times the last load.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from inference_api.bundle.fast_memory import needed_bytes
from inference_api.bundle.members import (
    Effect,
    EndRows,
    Eviction,
    Failure,
    LoadMember,
    Member,
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
from inference_api.bundle.states import UNLOADED, MemberStates
from inference_api.core.input_queue import Waiting
from inference_api.errors import MemberBusy, MemberLoading, MemberPinned
from inference_api.request import Switch

RESIDENCE_LOADS = 4  # a member stays at least so many times as long as its load took


@dataclass(slots=True)
class _Ticket:
    member: Member
    head_came_s: float
    issued_s: float
    from_name: str | None
    victims: list[Member] = field(default_factory=list)
    is_loading: bool = False
    is_second_try: bool = False
    must_free_idle: bool = False  # unload idle members before the next try


class Residency:
    """The state of every member. In each turn: report the loader's results, call `advance`, carry
    out the effects, then start requests one by one in the `order`. Decode thread only."""

    def __init__(self, needs: Mapping[str, Needs], policy: Policy) -> None:
        assert all(1 <= each.rows_min <= each.rows_max for each in needs.values())
        assert sum(each.rows_min for each in needs.values()) <= policy.user_rows
        self._policy = policy
        self._states = MemberStates(needs, policy)
        self._members, self._memory = self._states.by_name, self._states.memory
        self._rows = RowShares(self._members, policy.user_rows, self._memory)
        self._ticket: _Ticket | None = None
        self._arrived: list[Member] = []  # members that were loaded since the last turn
        self._is_at_rest = True  # nothing to do unless a request waits for an unloaded member
        self._snapshot: ResidencySnapshot | None = None

    # --- a turn ---------------------------------------------------------------------------

    def advance(self, now_s: float, waiting: Mapping[str, Waiting]) -> Sequence[Effect]:
        """Returns the effects to carry out now, in this order. `waiting` has exactly the members
        for which requests wait."""
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
        """Returns the members that may start a request, best first. Call it again after each
        start."""
        return self._rows.order()

    def started(self, name: str, now_s: float) -> None:
        """Note that a request of this member took a row, as `order` allowed."""
        self._rows.started(name)
        self._members[name].last_used_s = now_s
        self._snapshot = None

    def ended(self, name: str, now_s: float) -> None:
        """Note that a request of this member returned its row."""
        self._rows.ended(name)
        self._members[name].last_used_s = now_s
        self._snapshot = None

    def is_sure(self, name: str) -> bool:
        """Returns whether the member's next row is one of its guaranteed ones."""
        return bool(self._members[name].num_owed)

    def is_short(self, waiting: Collection[str]) -> bool:
        """Returns whether a member that has to be loaded, or another row of one that requests wait
        for, lacks memory as long as others have borrowed theirs."""
        asked = [each for each in self._members.values() if each.asked_s is not None]
        for member in [*map(self._members.__getitem__, waiting), *asked]:
            is_held = member.name in self._memory.holders
            has_room = self.free_bytes(member.name) >= 0 or bool(member.num_owed)
            if not (has_room if is_held else self._memory.has_room_for(member)):
                return True
        return False

    @property
    def may_lend(self) -> bool:
        """Whether pages beyond those of guaranteed rows may take memory: not while a member waits
        for room."""
        return self._rows.may_borrow

    def free_bytes(self, name: str) -> int:
        """Returns how much memory pages of this member may take besides another row of it."""
        return self._memory.free_bytes - self._members[name].needs.row_bytes

    def lend(self, name: str, num_bytes: int) -> None:
        """Note how much memory the member's pages take beyond those of its guaranteed rows."""
        self._memory.lend(self._members[name], num_bytes)
        assert self._memory.free_bytes >= 0, "only what is free is lent"
        self._snapshot = None

    def switch_of(self, name: str, came_s: float) -> Switch | None:
        """Returns how long a request that came at `came_s` and starts now waited for the load of
        its member; None if the member was loaded when it came."""
        return self._members[name].switch(came_s)

    @property
    def is_settled(self) -> bool:
        """Whether nothing changes with time alone, without a request, the loader or an operator.
        False while a member waits to be loaded, or is being loaded."""
        return self._ticket is None

    def snapshot(self) -> ResidencySnapshot:
        """Returns the state; the same object until something has changed."""
        if self._snapshot is None or self._states.has_news:
            self._snapshot = ResidencySnapshot(
                used_bytes=self._memory.used_bytes,
                num_running=self._rows.num_running,
                loading_next=None if self._ticket is None else self._ticket.member.name,
                members={
                    name: member.snapshot(is_held=name in self._memory.holders)
                    for name, member in self._members.items()
                },
            )
        return self._snapshot

    # --- results of the loader ------------------------------------------------------------

    def packing(self, name: str) -> None:
        """Note that the member's file is being packed, for a Load or in advance."""
        member = self._members[name]
        if member.state in UNLOADED or member.state is MemberState.LOADING:
            self._states.become(member, MemberState.PACKING)

    def loaded(self, name: str, now_s: float) -> None:
        """Note that a Load is done, even if it was given up, or no request waits any more."""
        member = self._members[name]
        assert name in self._states.at_loader, "no Load was issued"
        assert member.stay is not None
        self._states.answered(name, now_s)
        self._drop_ticket(member)
        member.is_packed = True
        member.stay.ready_s = now_s
        member.num_loads += 1
        self._arrived.append(member)
        self._states.become(member, MemberState.RESIDENT)

    def load_failed(
        self, name: str, reason: str, now_s: float, failure: Failure = Failure.LOAD
    ) -> None:
        """Note that a Load or its packing failed. The first time it fails for MEMORY, idle members
        are unloaded and it is tried once more."""
        member, ticket, is_loading = self._members[name], self._ticket, False
        self._states.answered(name, now_s)
        self._memory.release(member)
        if ticket is not None and ticket.member is member:
            is_loading, ticket.is_loading = ticket.is_loading, False
            if is_loading and failure is Failure.MEMORY and not ticket.is_second_try:
                ticket.is_second_try = ticket.must_free_idle = True
                self._states.become(member, member.unloaded_state)
                return
        if is_loading or member.state is MemberState.PACKING:
            self._fail(member, failure, reason)
        elif member.state is MemberState.FAILED:  # it was given up; now the reason is known
            self._states.become(member, MemberState.FAILED, reason)
        # Otherwise it was given up, and another try has been requested since.

    def unloaded(self, name: str, now_s: float) -> None:
        member = self._members[name]
        assert name in self._states.at_loader, "no Unload was issued"
        self._states.answered(name, now_s)
        self._memory.release(member)
        self._states.become(member, member.unloaded_state)

    def source_changed(self, name: str) -> None:
        """Note that the member's files have changed, so that a failed load may succeed now."""
        member = self._members[name]
        member.is_packed = False
        if member.state in (MemberState.FAILED, MemberState.ON_DISK):
            self._states.become(member, MemberState.ABSENT)

    # --- requests of operators ------------------------------------------------------------

    def ask_load(self, name: str, now_s: float) -> bool:
        """Load this member as if a request had come for it, even if it failed before. Returns
        whether it is loaded. Idempotent."""
        member = self._members[name]
        if member.state is MemberState.FAILED:
            self._states.become(member, member.unloaded_state)
        is_resident = member.state is MemberState.RESIDENT
        if not is_resident and not self._is_loading(member):
            self._states.ask(member, now_s)
        return is_resident

    def ask_unload(self, name: str, mode: UnloadMode, now_s: float) -> None:
        """Unload this member: only if it is idle, after its rows have ended, or at once, in which
        case `advance` returns an EndRows. Waiting requests cause it to be loaded again. Raises
        MemberPinned, MemberLoading, MemberBusy."""
        member, states = self._members[name], self._states
        if member.needs.is_pinned:
            raise MemberPinned(name)
        if self._is_loading(member):
            raise MemberLoading(name)
        if (
            member.state is MemberState.RESIDENT
            and mode is UnloadMode.IDLE
            and not states.is_idle(member)
        ):
            raise MemberBusy(name, member.num_running, self._rows.num_waiting(name))
        member.asked_s = None
        if member.state in (MemberState.RESIDENT, MemberState.DRAINING):
            states.drain(member, Eviction.OPERATOR, now_s)
        if mode is UnloadMode.FORCE and member.num_running:
            states.effects.append(EndRows(name))

    # --- the ticket -----------------------------------------------------------------------

    def _choose_ticket(self, now_s: float) -> None:
        """Keep or pass on the ticket. A member keeps it while its head waits, and in any case while
        it is being loaded."""
        ticket, states = self._ticket, self._states
        if ticket is not None and not ticket.is_loading:
            if states.head_came_s(ticket.member) == ticket.head_came_s:
                return
            self._drop_ticket(ticket.member)
        while self._ticket is None:
            member = min(states.those(*UNLOADED), key=states.head_came_s, default=None)
            if member is None or (head_came_s := states.head_came_s(member)) == math.inf:
                return
            over_bytes = needed_bytes({*states.pinned, member}) - self._memory.limit_bytes
            if over_bytes > 0:
                reason = f"fast_memory_limit leaves it {over_bytes} bytes less than it needs"
                self._fail(member, Failure.TOO_LARGE, reason)
            else:
                self._ticket = _Ticket(member, head_came_s, now_s, self._rows.last_to_start)

    def _serve_ticket(self, now_s: float) -> None:
        ticket, states = self._ticket, self._states
        if ticket is None or ticket.is_loading or states.is_loader_overdue(now_s):
            return
        if ticket.must_free_idle:
            ticket.must_free_idle = False
            self._evict(ticket, states.idle(states.unpinned()), Eviction.MEMORY, now_s)
        elif not self._memory.has_room_for(ticket.member):
            self._make_room(ticket, now_s)
        elif not states.at_loader:
            self._load(ticket, now_s)

    def _make_room(self, ticket: _Ticket, now_s: float) -> None:
        """Drain the fewest members that make room: idle ones, or, once the head has waited too
        long, also members whose waiting requests are all younger."""
        memory, states, staying = self._memory, self._states, self._memory.staying()
        borrowed_bytes = sum([each.borrowed_bytes for each in staying])
        # Borrowed rows end and none is borrowed meanwhile, so the drained memory suffices.
        if memory.has_room_beside(ticket.member, staying, 0 if ticket.victims else borrowed_bytes):
            return
        leaving = [each for each in states.unpinned() if each.protected_until_s <= now_s]
        idle = states.idle(leaving)
        victims = memory.fewest_to_leave(ticket.member, idle, borrowed_bytes)
        if not victims and now_s - ticket.head_came_s > self._policy.patience_s:
            others = [each for each in leaving if states.head_came_s(each) > ticket.head_came_s]
            busy = [each for each in others if each not in idle]
            busy.sort(key=lambda each: each.ready_s)
            victims = memory.fewest_to_leave(ticket.member, [*idle, *busy], 0)
        for victim in victims:
            eviction = Eviction.IDLE if victim in idle else Eviction.PATIENCE
            self._evict(ticket, [victim], eviction, now_s)

    def _evict(
        self, ticket: _Ticket, victims: Sequence[Member], eviction: Eviction, now_s: float
    ) -> None:
        for victim in victims:
            self._states.drain(victim, eviction, now_s)
            ticket.victims.append(victim)

    def _load(self, ticket: _Ticket, now_s: float) -> None:
        member = ticket.member
        ticket.is_loading = True
        self._spare_victims(ticket)
        if member.ready_s < math.inf:
            member.earlier_stay = member.stay
        member.stay = Stay(ticket.head_came_s, ticket.issued_s, now_s, ticket.from_name)
        self._memory.hold(member)
        self._states.become(member, MemberState.LOADING)
        self._states.send(LoadMember(member.name), now_s)

    def _drop_ticket(self, member: Member) -> None:
        """Drop the ticket, if it is this member's."""
        ticket = self._ticket
        if ticket is not None and ticket.member is member:
            self._ticket = None
            self._spare_victims(ticket)

    def _spare_victims(self, ticket: _Ticket) -> None:
        for victim in ticket.victims:
            self._states.spare(victim)
        ticket.victims.clear()

    def _end_overdue(self, now_s: float) -> None:
        """Fail waiting requests if the loader does not answer in time. It may answer later."""
        ticket, timeout_s = self._ticket, self._policy.load_timeout_s
        if ticket is None or not self._states.is_loader_overdue(now_s):
            return
        if ticket.is_loading:
            reason = f"it was not loaded within load_timeout_s={timeout_s:g}"
            self._fail(ticket.member, Failure.TIMEOUT, reason)
        elif now_s - ticket.issued_s > timeout_s:
            # The member itself has no fault, so the next request for it causes another try.
            reason = f"a load before it took longer than load_timeout_s={timeout_s:g}"
            ticket.member.asked_s = None
            self._states.effects.append(Refuse(ticket.member.name, reason))
            self._drop_ticket(ticket.member)

    # --- parts ----------------------------------------------------------------------------

    def _protect_arrived(self) -> None:
        """Protect a loaded member for a while if requests waited for it."""
        for member in self._arrived:
            assert member.stay is not None
            load_s = member.stay.ready_s - member.stay.issued_s
            residence_s = max(self._policy.min_residence_s, RESIDENCE_LOADS * load_s)
            is_awaited = member.name in self._states.waiting
            member.protected_until_s = member.ready_s + (residence_s if is_awaited else 0.0)
        self._arrived.clear()

    def _unload_drained(self, now_s: float) -> None:
        for member in self._states.those(MemberState.DRAINING):
            if not member.num_running and member.name not in self._states.at_loader:
                member.evictions[member.eviction] += 1
                self._states.send(Unload(member.name), now_s)

    def _refuse_failed(self) -> None:
        for name in self._states.waiting:
            member = self._members[name]
            if member.state is MemberState.FAILED:
                self._states.effects.append(Refuse(name, member.reason))

    def _settle(self, now_s: float) -> None:
        """Draw the conclusions of this turn for row shares, and for the next turn."""
        states, ticket = self._states, self._ticket
        sure = states.those(MemberState.RESIDENT)
        if ticket is not None:
            sure.append(ticket.member)
        waits_for_room = ticket is not None and not ticket.is_loading
        self._rows.owe(sure)
        self._rows.may_borrow = not waits_for_room or states.is_loader_overdue(now_s)
        self._is_at_rest = ticket is None and not states.at_loader
        self._is_at_rest &= not states.those(MemberState.DRAINING)
        states.has_news = False
        self._snapshot = None

    def _fail(self, member: Member, failure: Failure, reason: str) -> None:
        self._states.fail(member, failure, reason)
        self._drop_ticket(member)

    def _is_loading(self, member: Member) -> bool:
        ticket = self._ticket
        return ticket is not None and ticket.member is member and ticket.is_loading
