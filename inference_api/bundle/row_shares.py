"""Decides which loaded member gets the next user row. Each is guaranteed its `rows_min` rows.

Members borrow the remaining rows one by one: the next goes to the member that uses the smallest
share of its `rows_max`. Rows are never taken away. Decode thread only.
"""

from collections.abc import Iterable

from inference_api.bundle.members import Member, MemberState
from inference_api.bundle.states import MemberStates


class RowShares:
    """Counts the rows of members. `may_borrow` says whether members may take memory beyond that of
    their guaranteed rows, and so borrow rows that need memory."""

    def __init__(self, states: MemberStates) -> None:
        self.num_running = 0
        self.may_borrow = True
        self.last_to_start: str | None = None
        self._states = states
        self._members, self._memory = states.by_name, states.memory
        self._user_rows = states.policy.user_rows
        self._num_started: dict[str, int] = {}  # waiting requests that got a row in this turn
        self._num_owed = 0  # free rows that are kept for members below their `rows_min`

    def begin_turn(self) -> None:
        self._num_started.clear()

    def owe(self, members: Iterable[Member]) -> None:
        """Set the members whose guaranteed rows are kept for them."""
        self._num_owed = sum([each.num_owed for each in members])

    def num_waiting(self, name: str) -> int:
        waiting = self._states.waiting.get(name)
        return 0 if waiting is None else waiting.num_requests - self._num_started.get(name, 0)

    def order(self) -> list[str]:
        waiting = self._states.waiting
        names = [name for name in waiting if self.may_start(name) and self.num_waiting(name)]
        return sorted(names, key=self._turn) if len(names) > 1 else names

    def may_start(self, name: str) -> bool:
        member = self._members[name]
        needs, num_running = member.needs, member.num_running
        if (
            member.state is not MemberState.RESIDENT
            or num_running >= needs.rows_max
            or self.num_running >= self._user_rows
        ):
            return False
        if num_running < needs.rows_min:
            return True
        has_memory = self.may_borrow and needs.row_bytes <= self._memory.free_bytes
        has_row = self.num_running + self._num_owed < self._user_rows
        return has_row and (has_memory or not needs.row_bytes)

    def started(self, name: str) -> None:
        assert self.may_start(name), "a row is taken only by whom it is given"
        member = self._members[name]
        if member.num_running < member.needs.rows_min:
            self._num_owed -= 1
        else:
            self._memory.borrowed_bytes += member.needs.row_bytes
        member.num_running += 1
        self.num_running += 1
        self._num_started[name] = self._num_started.get(name, 0) + 1
        self.last_to_start = name

    def ended(self, name: str) -> None:
        member = self._members[name]
        assert member.num_running > 0, "a row is given back once"
        member.num_running -= 1
        self.num_running -= 1
        if member.num_running >= member.needs.rows_min:
            self._memory.borrowed_bytes -= member.needs.row_bytes
        elif member.state is MemberState.RESIDENT:
            self._num_owed += 1

    def _turn(self, name: str) -> tuple[bool, float, float]:
        """Returns a sort key. Members below their `rows_min` come first, the longest wait first, so
        that no later request passes the oldest one. Then come the others, smallest share first."""
        member, came_s = self._members[name], self._states.waiting[name].oldest_came_s
        if member.num_running >= member.needs.rows_min:
            return True, member.num_running / member.needs.rows_max, came_s
        # Only the oldest arrival is known. Members with requests from before they were loaded go
        # first; after that, members take turns.
        num_started = 0 if came_s < member.ready_s else self._num_started.get(name, 0)
        return False, num_started, came_s
