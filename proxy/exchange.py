"""One request on its way through the proxy, and the table of all that are running.

An exchange is the meeting point of two threads: its request thread, which blocks on the
upstream's socket, and the watcher, which may have to wake it because the client has gone, has
stalled, or because the drain is over. Waking means shutting the upstream's socket down.
"""

import contextlib
import socket
import struct
import threading
import time
from enum import StrEnum


class Outcome(StrEnum):
    """How an exchange ended, as the audit line and the metrics call it."""

    COMPLETE = "complete"
    REFUSED = "refused"  # answered by the proxy itself
    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    UPSTREAM_BROKE = "upstream_broke"
    DRAINED = "drained"


class Exchange:
    """Request thread, except `abort`, `abort_if_stalled` and `abort_reason`: any thread."""

    def __init__(self, client: socket.socket | None) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._upstream: socket.socket | None = None
        self._abort_reason: Outcome | None = None
        self.watched_fd: int | None = None  # the watcher's own note
        self._writing_since_s = 0.0  # 0: not writing to the client just now

    @property
    def abort_reason(self) -> Outcome | None:
        return self._abort_reason

    def attach(self, upstream: socket.socket) -> None:
        """From here on `abort` shuts this socket; at once if the abort came first."""
        with self._lock:
            self._upstream = upstream
            if self._abort_reason is not None:
                shut(upstream)

    def detach(self) -> None:
        """Before the connection goes back to its pool: it may soon serve someone else."""
        with self._lock:
            self._upstream = None

    def abort(self, reason: Outcome) -> None:
        """Make the request thread stop waiting for the upstream. The first reason stays."""
        with self._lock:
            if self._abort_reason is None:
                self._abort_reason = reason
            if self._upstream is not None:
                shut(self._upstream)

    def reset_client(self) -> None:
        """Close the client's connection with a reset in place of an orderly end."""
        if self.client is not None:
            with contextlib.suppress(OSError):
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.client.close()

    def write_begins(self) -> None:
        self._writing_since_s = time.monotonic()

    def write_ends(self) -> None:
        self._writing_since_s = 0.0

    def abort_if_stalled(self, now_s: float, timeout_s: float) -> None:
        """Cut off a client that has taken nothing for `timeout_s` seconds.

        Its own socket is shut as well: the request thread is blocked in a send to it.
        """
        since_s = self._writing_since_s
        if since_s and now_s - since_s > timeout_s:
            self.abort(Outcome.CLIENT_STALLED)
            if self.client is not None:
                shut(self.client)


class RunningExchanges:
    """Every exchange between its first and its last byte. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Exchange] = set()

    def __len__(self) -> int:
        return len(self._running)

    def add(self, exchange: Exchange) -> None:
        with self._lock:
            self._running.add(exchange)

    def discard(self, exchange: Exchange) -> None:
        with self._lock:
            self._running.discard(exchange)

    def snapshot(self) -> tuple[Exchange, ...]:
        with self._lock:
            return tuple(self._running)


def shut(sock: socket.socket) -> None:
    """End both directions, so that whoever is blocked on the socket wakes up."""
    # The plain method even for TLS: SSLSocket.shutdown would pull its state away from under
    # the thread that is reading. A socket its own thread has just closed raises OSError.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
