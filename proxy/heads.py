"""Request heads that are still coming in, so that a client cannot hold a thread by being slow."""

import socket
import threading
import time
from typing import Protocol

from proxy.exchange import shut


class Connection(Protocol):
    """gunicorn's connection: its socket changes when TLS is set up."""

    sock: socket.socket


class PendingHeads:
    """Begun and ended by request threads, cut by the watcher."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._deadline_by_connection: dict[Connection, float] = {}

    def begin(self, connection: Connection) -> None:
        with self._lock:
            self._deadline_by_connection[connection] = time.monotonic() + self._timeout_s

    def end(self, connection: Connection) -> None:
        """May be called more than once."""
        with self._lock:
            self._deadline_by_connection.pop(connection, None)

    def cut_late(self, now_s: float) -> None:
        """Wake the threads whose clients have had their time: their reads come to an end."""
        with self._lock:
            late = [c for c, at_s in self._deadline_by_connection.items() if at_s <= now_s]
            for connection in late:
                del self._deadline_by_connection[connection]
                shut(connection.sock)
