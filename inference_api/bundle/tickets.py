"""Decides which member is loaded next, and which members are unloaded for it.

One member at a time holds the *ticket*. It is loaded next, because its oldest waiting request (the
*head*) came before those of all other members that are not in memory. Decode thread only.
"""

import math
from dataclasses import dataclass, field

from inference_api.bundle.members import (
    Eviction,
    Failure,
    LoadMember,
    Member,
    MemberState,
    Refuse,
    Stay,
)
from inference_api.bundle.states import UNLOADED, MemberStates, needed_bytes


@dataclass(slots=True)
class _Ticket:
    member: Member
    head_arrived_s: float
    issued_s: float
    from_name: str | None
    victims: list[Member] = field(default_factory=list)
    is_loading: bool = False
    is_second_try: bool = False
    must_free_idle: bool = False  # idle members are unloaded before the next try


class Tickets:
    """Gives out the ticket, makes room for its holder, and has it loaded."""

    def __init__(self, states: MemberStates) -> None:
        self._states = states
        self._ticket: _Ticket | None = None

    @property
    def holder(self) -> Member | None:
        return None if self._ticket is None else self._ticket.member

    def is_loading(self, member: Member) -> bool:
        ticket = self._ticket
        return ticket is not None and ticket.member is member and ticket.is_loading

    @property
    def waits_for_room(self) -> bool:
        return self._ticket is not None and not self._ticket.is_loading

    def advance(self, now_s: float) -> None:
        """Take the next step towards loading the holder, which may change."""
        self._end_overdue(now_s)
        self._choose(now_s)
        self._serve(now_s)

    def drop(self, member: Member) -> None:
        """Drop the ticket if this member holds it."""
        ticket = self._ticket
        if ticket is not None and ticket.member is member:
            self._ticket = None
            self._spare_victims(ticket)

    def fail(self, member: Member, failure: Failure, reason: str) -> None:
        member.failures[failure] += 1
        member.requested_s = None
        self._states.become(member, MemberState.FAILED, reason)
        self.drop(member)

    def load_failed(self, member: Member, reason: str, failure: Failure) -> None:
        """Note that a load, or the packing for it, failed. If it fails for MEMORY the first time,
        it is tried once more after idle members were unloaded."""
        ticket, is_loading = self._ticket, self.is_loading(member)
        if ticket is not None and is_loading:
            ticket.is_loading = False
            if failure is Failure.MEMORY and not ticket.is_second_try:
                ticket.is_second_try = ticket.must_free_idle = True
                self._states.become(member, member.unloaded_state)
                return
        if is_loading or member.state is MemberState.PACKING:
            self.fail(member, failure, reason)
        elif member.state is MemberState.FAILED:  # it timed out before; now the reason is known
            self._states.become(member, MemberState.FAILED, reason)
        # Otherwise it timed out before, and another try has been requested since.

    def _end_overdue(self, now_s: float) -> None:
        """Fail the holder's requests if the loader is late with an answer, which may yet come."""
        ticket, timeout_s = self._ticket, self._states.policy.load_timeout_s
        if ticket is None or not self._states.is_loader_overdue(now_s):
            return
        if ticket.is_loading:
            reason = f"it was not loaded within load_timeout_s={timeout_s:g}"
            self.fail(ticket.member, Failure.TIMEOUT, reason)
        elif now_s - ticket.issued_s > timeout_s:
            # The member itself has not failed, so the next request for it causes another try.
            reason = f"a load before it took longer than load_timeout_s={timeout_s:g}"
            ticket.member.requested_s = None
            self._states.effects.append(Refuse(ticket.member.name, reason))
            self.drop(ticket.member)

    def _choose(self, now_s: float) -> None:
        """Keep the ticket or give it to another member. A member keeps it while its head waits, and
        always while it is being loaded."""
        ticket, states = self._ticket, self._states
        if ticket is not None and not ticket.is_loading:
            if states.head_arrived_s(ticket.member) == ticket.head_arrived_s:
                return
            self.drop(ticket.member)
        while self._ticket is None:
            member = min(states.in_state(*UNLOADED), key=states.head_arrived_s, default=None)
            if member is None or (head_arrived_s := states.head_arrived_s(member)) == math.inf:
                return
            over_bytes = needed_bytes({*states.pinned, member})
            over_bytes -= states.policy.fast_memory_limit_bytes
            if over_bytes > 0:
                reason = f"fast_memory_limit leaves it {over_bytes} bytes less than it needs"
                self.fail(member, Failure.TOO_LARGE, reason)
            else:
                self._ticket = _Ticket(member, head_arrived_s, now_s, states.last_to_start)

    def _serve(self, now_s: float) -> None:
        ticket, states = self._ticket, self._states
        if ticket is None or ticket.is_loading or states.is_loader_overdue(now_s):
            return
        if ticket.must_free_idle:
            ticket.must_free_idle = False
            for idle in states.idle(states.unpinned()):
                self._evict(ticket, idle, Eviction.MEMORY, now_s)
        elif not states.has_room_for(ticket.member):
            self._make_room(ticket, now_s)
        elif not states.at_loader:
            self._load(ticket, now_s)

    def _make_room(self, ticket: _Ticket, now_s: float) -> None:
        """Drain as few members as make room: only idle ones, but once the head has waited longer
        than `patience_s`, also members whose waiting requests all came later than it."""
        states, staying = self._states, self._states.staying()
        borrowed_bytes = sum([each.borrowed_bytes for each in staying])
        # While victims drain, borrowed memory is returned and none is lent, so it does not count.
        if states.has_room_beside(ticket.member, staying, 0 if ticket.victims else borrowed_bytes):
            return
        leaving = [each for each in states.unpinned() if each.protected_until_s <= now_s]
        idle = states.idle(leaving)
        victims = states.fewest_to_leave(ticket.member, idle, borrowed_bytes)
        if not victims and now_s - ticket.head_arrived_s > states.policy.patience_s:
            head_s = ticket.head_arrived_s
            busy = [e for e in leaving if e not in idle and states.head_arrived_s(e) > head_s]
            busy.sort(key=lambda each: each.ready_s)
            victims = states.fewest_to_leave(ticket.member, [*idle, *busy], 0)
        for victim in victims:
            eviction = Eviction.IDLE if victim in idle else Eviction.PATIENCE
            self._evict(ticket, victim, eviction, now_s)

    def _evict(self, ticket: _Ticket, victim: Member, eviction: Eviction, now_s: float) -> None:
        self._states.drain(victim, eviction, now_s)
        ticket.victims.append(victim)

    def _load(self, ticket: _Ticket, now_s: float) -> None:
        member = ticket.member
        ticket.is_loading = True
        self._spare_victims(ticket)
        if member.ready_s < math.inf:
            member.earlier_stay = member.stay
        member.stay = Stay(ticket.head_arrived_s, ticket.issued_s, now_s, ticket.from_name)
        self._states.hold(member)
        self._states.become(member, MemberState.LOADING)
        self._states.send(LoadMember(member.name), now_s)

    def _spare_victims(self, ticket: _Ticket) -> None:
        for victim in ticket.victims:
            self._states.spare(victim)
        ticket.victims.clear()
