"""The connections that wait, and which of them to close first.

One thread. Nothing here reads, writes or closes a socket.
"""

from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar

from gunicorn.workers.gthread import TConn

from common.connections.inbound import Inbound


class Wait(IntEnum):
    """What a connection waits for. If room is needed, the lowest are closed first."""

    CLOSE = 0  # answered; the client should close it, too
    REQUEST = 1  # new, or with part of a request
    NEXT_REQUEST = 2  # kept alive, without any bytes of the next request


class Waiter(Protocol):
    address: str
    wait: Wait | None  # None: it is served


W = TypeVar("W", bound=Waiter)


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


class WaitingLine(Generic[W]):
    """Waiting connections, in the order in which they began to wait."""

    def __init__(self) -> None:
        self.by_wait: dict[Wait, dict[W, None]] = {wait: {} for wait in Wait}
        self.by_address: dict[str, dict[W, None]] = {}  # Wait.REQUEST only

    def add(self, connection: W, wait: Wait) -> None:
        self.remove(connection)
        connection.wait = wait
        self.by_wait[wait][connection] = None
        if wait is Wait.REQUEST:
            self.by_address.setdefault(connection.address, {})[connection] = None

    def remove(self, connection: W) -> None:
        """Remove a connection, if it waits."""
        if connection.wait is None:
            return
        del self.by_wait[connection.wait][connection]
        if connection.wait is Wait.REQUEST:
            of_address = self.by_address[connection.address]
            del of_address[connection]
            if not of_address:
                del self.by_address[connection.address]
        connection.wait = None

    def oldest(self, besides: W | None = None) -> W | None:
        """Returns the connection to close first if there are too many; never `besides`."""
        waiting = (each for wait in Wait for each in self.by_wait[wait])
        return next((each for each in waiting if each is not besides), None)


class WaitingConnections(WaitingLine[PolledConnection]):
    """The connections that no thread is serving. Only the polling thread uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_held_bytes = 0  # bytes of all unanswered requests

    def hold(self, connection: PolledConnection, num_bytes: int) -> None:
        """Record how many bytes are held for a connection."""
        self.num_held_bytes += num_bytes - connection.num_held_bytes
        connection.num_held_bytes = num_bytes

    def newest(self) -> PolledConnection | None:
        """Returns the connection that began to wait for a request last."""
        return next(reversed(self.by_wait[Wait.REQUEST]), None)

    def oldest_of(self, address: str) -> PolledConnection:
        return next(iter(self.by_address[address]))

    def largest(self) -> PolledConnection | None:
        """Returns the connection to close first if there are too many bytes."""
        requests = self.by_wait[Wait.REQUEST]
        return max(requests, key=lambda each: each.num_held_bytes, default=None)

    def all(self) -> list[PolledConnection]:
        return [each for wait in Wait for each in self.by_wait[wait]]
