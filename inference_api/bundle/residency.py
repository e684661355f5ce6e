"""Decides which members of a bundle are in memory, and whose requests take the rows.

The decode thread owns the state. It calls `advance` once per turn, gives the effects to a loader
that executes them one at a time, and reports the results here. This module has no threads, I/O or
clock.

    absent ─▶ packing ─▶ on_disk ─▶ loading ─▶ resident ─▶ draining ─▶ on_disk
                 └───────────────────┴──▶ failed

One member at a time has the *ticket* and is loaded next: see `tickets`. A request waits at most

    patience + (requests waiting when it came + 1) * (residence + longest run + load timeout)

where residence is the larger of `min_residence_s` and `RESIDENCE_LOADS` times the last load.

Each loaded member is guaranteed its `rows_min` rows. Members borrow the remaining rows one by one:
the next goes to the member that uses the smallest share of its `rows_max`. Rows are never taken
away.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from inference_api.bundle.members import (
    Effect,
    EndRows,
    Eviction,
    Failure,
    Member,
    MemberState,
    Needs,
    Policy,
    Refuse,
    ResidencySnapshot,
    Unload,
    UnloadMode,
)
from inference_api.bundle.states import UNLOADED, MemberStates
from inference_api.bundle.tickets import Tickets
from inference_api.core.input_queue import Waiting
from inference_api.errors import MemberBusy, MemberLoading, MemberPinned
from inference_api.request import Switch

RESIDENCE_LOADS = 4  # a member stays at least this many times as long as its load took


class Residency:
    """Decides about every member. In each turn, report the loader's results, call `advance`, carry
    out the effects, then start requests one by one, as `order` says. Decode thread only."""

    def __init__(self, needs: Mapping[str, Needs], policy: Policy) -> None:
        assert all(1 <= each.rows_min <= each.rows_max for each in needs.values())
        assert sum(each.rows_min for each in needs.values()) <= policy.user_rows
        self._states = MemberStates(needs, policy)
        self._members = self._states.by_name
        self._tickets = Tickets(self._states)
        self._num_running = 0
        self._num_owed = 0  # free rows that are kept for members below their `rows_min`
        self._num_started = Counter[str]()  # waiting requests that got a row in this turn
        self._arrived: list[Member] = []  # members that were loaded since the last turn
        self.may_lend = True
        """Whether rows and pages beyond the guaranteed ones may take memory. False while a member
        waits for room."""
        self._is_at_rest = True  # nothing is to do until a request comes for an unloaded member
        self._snapshot: ResidencySnapshot | None = None

    # --- a turn ---------------------------------------------------------------------------

    def advance(self, now_s: float, waiting: Mapping[str, Waiting]) -> Sequence[Effect]:
        """Returns the effects to carry out now, in order. `waiting` has exactly the members for
        which requests wait."""
        states = self._states
        states.waiting = waiting
        self._num_started.clear()
        if self._is_at_rest and not states.has_news and waiting.keys() <= states.ready:
            return ()
        self._protect_arrived()
        self._tickets.advance(now_s)
        self._unload_drained(now_s)
        self._refuse_failed()
        self._settle(now_s)
        effects, states.effects = states.effects, []
        return effects

    def order(self) -> list[str]:
        """Returns the members that may start a request, best first. Call it again after each
        start."""
        waiting = self._states.waiting
        names = [name for name in waiting if self.may_start(name) and self._num_waiting(name)]
        return sorted(names, key=self._place) if len(names) > 1 else names

    def may_start(self, name: str) -> bool:
        """Returns whether a request of this member may take a row now."""
        member = self._members[name]
        needs, num_running = member.needs, member.num_running
        if (
            member.state is not MemberState.RESIDENT
            or num_running >= needs.rows_max
            or self._num_running >= self._states.policy.user_rows
        ):
            return False
        if num_running < needs.rows_min:
            return True
        has_memory = self.may_lend and needs.row_bytes <= self._states.free_bytes
        has_row = self._num_running + self._num_owed < self._states.policy.user_rows
        return has_row and (has_memory or not needs.row_bytes)

    def started(self, name: str, now_s: float) -> None:
        """Note that a request of this member took a row, as `order` allowed."""
        assert self.may_start(name), "a row is taken only by whom it is given"
        member = self._members[name]
        if member.num_owed:
            self._num_owed -= 1
        else:
            self._states.borrowed_bytes += member.needs.row_bytes
        member.num_running += 1
        self._num_running += 1
        self._num_started[name] += 1
        self._states.last_to_start = name
        member.last_used_s = now_s
        self._snapshot = None

    def ended(self, name: str, now_s: float) -> None:
        """Note that a request of this member returned its row."""
        member = self._members[name]
        assert member.num_running > 0, "a row is given back once"
        member.num_running -= 1
        self._num_running -= 1
        if not member.num_owed:
            self._states.borrowed_bytes -= member.needs.row_bytes
        elif member.state is MemberState.RESIDENT:
            self._num_owed += 1
        member.last_used_s = now_s
        self._snapshot = None

    def is_sure(self, name: str) -> bool:
        """Returns whether the member's next row is one of its guaranteed ones."""
        return bool(self._members[name].num_owed)

    def is_short(self, waiting: Collection[str]) -> bool:
        """Returns whether memory that is borrowed now keeps a wanted member from being loaded, or a
        loaded one from starting a waiting request."""
        requested = [each for each in self._members.values() if each.requested_s is not None]
        for member in [*map(self._members.__getitem__, waiting), *requested]:
            is_held = member.name in self._states.holders
            has_room = self.free_bytes(member.name) >= 0 or bool(member.num_owed)
            if not (has_room if is_held else self._states.has_room_for(member)):
                return True
        return False

    def free_bytes(self, name: str) -> int:
        """Returns the bytes that pages of this member may take if it also gets another row."""
        return self._states.free_bytes - self._members[name].needs.row_bytes

    def lend(self, name: str, num_bytes: int) -> None:
        """Note how many bytes the member's pages take beyond those of its guaranteed rows."""
        member, states = self._members[name], self._states
        states.borrowed_bytes += num_bytes - member.lent_bytes
        member.lent_bytes = num_bytes
        assert states.free_bytes >= 0, "only what is free is lent"
        self._snapshot = None

    def switch_of(self, name: str, arrived_s: float) -> Switch | None:
        """Returns how long a request from `arrived_s` that starts now has waited for its member to
        load; None if the member was loaded when it came."""
        return self._members[name].switch(arrived_s)

    @property
    def is_settled(self) -> bool:
        """Whether nothing changes until a request, the loader or an operator causes it. False while
        a member waits to be loaded, or is being loaded."""
        return self._tickets.holder is None

    def snapshot(self) -> ResidencySnapshot:
        """Returns the state: the same object as before if nothing has changed."""
        if self._snapshot is None or self._states.has_news:
            holder = self._tickets.holder
            self._snapshot = ResidencySnapshot(
                used_bytes=self._states.used_bytes,
                num_running=self._num_running,
                loading_next=None if holder is None else holder.name,
                members={
                    name: member.snapshot(is_held=name in self._states.holders)
                    for name, member in self._members.items()
                },
            )
        return self._snapshot

    # --- results of the loader ------------------------------------------------------------

    def packing(self, name: str) -> None:
        """Note that the member's file is being packed."""
        member = self._members[name]
        if member.state in UNLOADED or member.state is MemberState.LOADING:
            self._states.become(member, MemberState.PACKING)

    def loaded(self, name: str, now_s: float) -> None:
        """Note that a load is done, even if it had timed out, or no request waits any more."""
        member = self._members[name]
        assert name in self._states.at_loader, "no Load was issued"
        assert member.stay is not None
        self._states.answered(name, now_s)
        self._tickets.drop(member)
        member.is_packed = True
        member.stay.ready_s = now_s
        member.num_loads += 1
        self._arrived.append(member)
        self._states.become(member, MemberState.RESIDENT)

    def load_failed(
        self, name: str, reason: str, now_s: float, failure: Failure = Failure.LOAD
    ) -> None:
        """See `Tickets.load_failed`."""
        member = self._members[name]
        self._states.answered(name, now_s)
        self._states.release(member)
        self._tickets.load_failed(member, reason, failure)

    def unloaded(self, name: str, now_s: float) -> None:
        member = self._members[name]
        assert name in self._states.at_loader, "no Unload was issued"
        self._states.answered(name, now_s)
        self._states.release(member)
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
        whether it is loaded already. Idempotent."""
        member = self._members[name]
        if member.state is MemberState.FAILED:
            self._states.become(member, member.unloaded_state)
        is_resident = member.state is MemberState.RESIDENT
        if not is_resident and not self._tickets.is_loading(member):
            member.requested_s = now_s if member.requested_s is None else member.requested_s
            self._states.has_news = True
        return is_resident

    def ask_unload(self, name: str, mode: UnloadMode, now_s: float) -> None:
        """Unload this member: only if it is idle, after its rows have ended, or at once, in which
        case `advance` returns an EndRows. It is loaded again if requests wait for it. Raises
        MemberPinned, MemberLoading, MemberBusy."""
        member, states = self._members[name], self._states
        if member.needs.is_pinned:
            raise MemberPinned(name)
        if self._tickets.is_loading(member):
            raise MemberLoading(name)
        if (
            member.state is MemberState.RESIDENT
            and mode is UnloadMode.IDLE
            and not states.is_idle(member)
        ):
            raise MemberBusy(name, member.num_running, self._num_waiting(name))
        member.requested_s = None
        if member.state in (MemberState.RESIDENT, MemberState.DRAINING):
            states.drain(member, Eviction.OPERATOR, now_s)
        if mode is UnloadMode.FORCE and member.num_running:
            states.effects.append(EndRows(name))

    # --- parts ----------------------------------------------------------------------------

    def _num_waiting(self, name: str) -> int:
        waiting = self._states.waiting.get(name)
        return 0 if waiting is None else waiting.num_requests - self._num_started[name]

    def _place(self, name: str) -> tuple[bool, float, float]:
        """Returns a sort key. Members below their `rows_min` come first, the longest wait first, so
        that no later request passes the oldest one. Then come the others, smallest share first."""
        member, arrived_s = self._members[name], self._states.waiting[name].oldest_arrived_s
        if not member.num_owed:
            return True, member.num_running / member.needs.rows_max, arrived_s
        # Only the oldest arrival is known. Members with requests from before they were loaded go
        # first; after that, members take turns.
        num_started = 0 if arrived_s < member.ready_s else self._num_started[name]
        return False, num_started, arrived_s

    def _protect_arrived(self) -> None:
        """Protect newly loaded members from eviction for a while, if requests wait for them."""
        for member in self._arrived:
            assert member.stay is not None
            load_s = member.stay.ready_s - member.stay.issued_s
            residence_s = max(self._states.policy.min_residence_s, RESIDENCE_LOADS * load_s)
            is_awaited = member.name in self._states.waiting
            member.protected_until_s = member.ready_s + (residence_s if is_awaited else 0.0)
        self._arrived.clear()

    def _unload_drained(self, now_s: float) -> None:
        for member in self._states.in_state(MemberState.DRAINING):
            if not member.num_running and member.name not in self._states.at_loader:
                member.evictions[member.eviction] += 1
                self._states.send(Unload(member.name), now_s)

    def _refuse_failed(self) -> None:
        for name in self._states.waiting:
            member = self._members[name]
            if member.state is MemberState.FAILED:
                self._states.effects.append(Refuse(name, member.reason))

    def _settle(self, now_s: float) -> None:
        """Update the row counts after this turn's decisions, and whether the next turn may rest."""
        states, holder = self._states, self._tickets.holder
        sure = states.in_state(MemberState.RESIDENT)
        sure += [] if holder is None else [holder]
        self._num_owed = sum([each.num_owed for each in sure])
        self.may_lend = not self._tickets.waits_for_room or states.is_loader_overdue(now_s)
        self._is_at_rest = holder is None and not states.at_loader
        self._is_at_rest &= not states.in_state(MemberState.DRAINING)
        states.has_news = False
        self._snapshot = None
