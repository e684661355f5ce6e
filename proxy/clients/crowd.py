"""The clients' connections: how many there may be, which to close first, whose time is over.

A silent or slow client costs no more than one entry here. Connections that have sent no complete
head make room for new ones, and are closed if their address has too many. Event loop only.
"""

import math
from itertools import islice
from typing import Protocol

from common.connections.waiting import Wait, Waiter, WaitingLine

# Beyond `max_connections`, for /health and for operators.
RESERVED_CONNECTIONS = 64
# So long a new connection does not count against its address: when many come at once, their heads
# are read only after all have been accepted.
GRACE_S = 1.0
MAX_CLOSED = 64  # connections closed in one sweep, for each reason


class Member(Waiter, Protocol):
    """A connection. `deadline_s`, by the loop's clock, is infinite while nothing is due."""

    waits_since_s: float
    deadline_s: float

    @property
    def is_sending(self) -> bool:
        """Whether the client has yet to take bytes that were written for it."""

    def expire(self) -> None:
        """Called when the deadline has passed."""

    def evict(self) -> None:
        """Closes the connection, because its place is needed. A client that may be sending a
        request gets a refusal first."""


class Crowd:
    """All connections. Those that wait are kept in the order in which they began to wait."""

    def __init__(self, max_connections: int, max_waiting_per_address: int) -> None:
        self.max_connections = max_connections
        self._max_waiting_per_address = max_waiting_per_address
        self._members: set[Member] = set()
        self._waiting: WaitingLine[Member] = WaitingLine()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def is_full(self) -> bool:
        """Whether only the reserved places are left, for /health and for operators."""
        return len(self._members) - len(self._waiting.by_wait[Wait.REQUEST]) > self.max_connections

    def enter(self, member: Member, now_s: float) -> bool:
        """Adds a connection, and closes a waiting one if that is needed. Returns False if there is
        no room. A new connection within its grace, which may be for /health, is closed only when
        the reserved places are taken, too."""
        oldest = self._waiting.oldest()
        is_kept = (
            oldest is not None
            and oldest.wait is Wait.REQUEST
            and oldest.waits_since_s > now_s - GRACE_S
        )
        max_connections = self.max_connections + (RESERVED_CONNECTIONS if is_kept else 0)
        if len(self._members) >= max_connections:
            self._evict(oldest)
        if len(self._members) >= self.max_connections + RESERVED_CONNECTIONS:
            return False
        self._members.add(member)
        return True

    def leave(self, member: Member) -> None:
        self.serve(member)
        self._members.discard(member)

    def wait(self, member: Member, wait: Wait, now_s: float) -> None:
        """Puts the connection behind all others that wait for the same thing."""
        self._waiting.add(member, wait)
        member.waits_since_s = now_s

    def serve(self, member: Member) -> None:
        """Notes that the connection no longer waits."""
        self._waiting.remove(member)

    def sweep(self, now_s: float) -> bool:
        """Closes connections that are too many or whose time is over. Called a few times a second.
        Returns whether there are more: of thousands, some wait, so that others are served."""
        surplus = [
            member
            for waiting in self._waiting.by_address.values()
            for member in islice(waiting, max(0, len(waiting) - self._max_waiting_per_address))
            if member.waits_since_s <= now_s - GRACE_S
        ]
        for member in surplus[:MAX_CLOSED]:
            self._evict(member)
        late = [member for member in self._members if member.deadline_s <= now_s]
        for member in late[:MAX_CLOSED]:
            member.deadline_s = math.inf
            member.expire()
        return max(len(surplus), len(late)) > MAX_CLOSED

    def members(self) -> tuple[Member, ...]:
        return tuple(self._members)

    def _evict(self, member: Member | None) -> None:
        if member is not None:
            member.evict()
            self.leave(member)
