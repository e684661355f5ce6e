"""The connections that no thread is serving, and which of them to close first.

Only the polling thread uses it. Nothing here reads, writes or closes a socket.
"""

from enum import IntEnum
from typing import Any

from gunicorn.workers.gthread import TConn

from common.connections.inbound import Inbound


class Wait(IntEnum):
    """What a connection waits for. If room is needed, the lowest are closed first."""

    CLOSE = 0  # answered; the client should close it, too
    REQUEST = 1  # new, or with part of a request
    NEXT_REQUEST = 2  # kept alive, without any bytes of the next request


class PolledConnection(TConn):
    """A connection whose requests are collected without a thread."""

    parser: Inbound

    def __init__(self, cfg: Any, sock: Any, client: Any, server: Any, max_body_bytes: int) -> None:
        super().__init__(cfg, sock, client, server)
        self.initialized = True
        self.parser = Inbound(cfg, client, max_body_bytes)
        self.address = str(client[0]) if isinstance(client, tuple) else ""
        self.wait: Wait | None = None  # None: a thread serves it
        self.is_polled = False
        self.since_s = 0.0  # when this wait, or the awaited body, began
        self.deadline_s = 0.0
        self.num_discarded_bytes = 0  # bytes received after its last answer
        self.num_held_bytes = 0  # bytes of the request that is coming in or being answered


class WaitingConnections:
    """Waiting connections, in the order in which they began to wait."""

    def __init__(self) -> None:
        self._by_wait: dict[Wait, dict[PolledConnection, None]] = {wait: {} for wait in Wait}
        self._by_address: dict[str, dict[PolledConnection, None]] = {}  # Wait.REQUEST only
        self._num_held_bytes = 0

    @property
    def num_held_bytes(self) -> int:
        """Bytes of all unanswered requests, whether or not their connections wait."""
        return self._num_held_bytes

    def add(self, connection: PolledConnection, wait: Wait) -> None:
        self.remove(connection)
        connection.wait = wait
        self._by_wait[wait][connection] = None
        if wait is Wait.REQUEST:
            self._by_address.setdefault(connection.address, {})[connection] = None

    def remove(self, connection: PolledConnection) -> None:
        """Remove a connection, if it waits."""
        if connection.wait is None:
            return
        del self._by_wait[connection.wait][connection]
        if connection.wait is Wait.REQUEST:
            of_address = self._by_address[connection.address]
            del of_address[connection]
            if not of_address:
                del self._by_address[connection.address]
        connection.wait = None

    def hold(self, connection: PolledConnection, num_bytes: int) -> None:
        """Record how many bytes are held for a connection."""
        self._num_held_bytes += num_bytes - connection.num_held_bytes
        connection.num_held_bytes = num_bytes

    def num_requests_of(self, address: str) -> int:
        """Returns how many connections of an address wait for (the rest of) a request."""
        return len(self._by_address.get(address, ()))

    def oldest(self, besides: PolledConnection | None = None) -> PolledConnection | None:
        """Returns the connection to close first if there are too many; never `besides`."""
        return next((each for each in self.all() if each is not besides), None)

    def newest(self) -> PolledConnection | None:
        """Returns the connection that began to wait for a request last."""
        return next(reversed(self._by_wait[Wait.REQUEST]), None)

    def oldest_of(self, address: str) -> PolledConnection:
        return next(iter(self._by_address[address]))

    def largest(self) -> PolledConnection | None:
        """Returns the connection to close first if there are too many bytes."""
        requests = self._by_wait[Wait.REQUEST]
        return max(requests, key=lambda each: each.num_held_bytes, default=None)

    def late(self, now_s: float) -> list[PolledConnection]:
        return [each for each in self.all() if each.deadline_s <= now_s]

    def all(self) -> list[PolledConnection]:
        return [each for wait in Wait for each in self._by_wait[wait]]
