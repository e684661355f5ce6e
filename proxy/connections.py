"""Kept-alive connections to one upstream.

The standard library's client, because its connection can be driven in steps: the watcher needs
the socket while we still wait for the head, and `read1` hands on what has come without waiting
for more, chunked or not.
"""

import http.client
import select
import socket
import ssl
import threading
import time
from dataclasses import dataclass

# Below the 75 s after which the API's gunicorn closes an idle connection.
MAX_IDLE_S = 60.0
MAX_IDLE_CONNECTIONS = 64
KEEPALIVE_IDLE_S = 60


@dataclass(slots=True)
class PooledConnection:
    """Held by one thread at a time."""

    client: http.client.HTTPConnection
    # The client drops its own reference when a response ends with the connection.
    socket: socket.socket
    is_reused: bool = False
    idle_since_s: float = 0.0


class ConnectionPool:
    """Idle connections to one address, the most recently used first. Any thread."""

    def __init__(self, scheme: str, host: str, port: int, connect_timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._tls = ssl.create_default_context() if scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: list[PooledConnection] = []
        self._is_closed = False

    def acquire(self) -> PooledConnection:
        """A live idle connection, or a new one. OSError when the upstream cannot be reached."""
        while (connection := self._pop_idle()) is not None:
            if not _is_stale(connection):
                connection.is_reused = True
                return connection
            connection.client.close()
        client = self._connect()
        return PooledConnection(client, client.sock)

    def release(self, connection: PooledConnection) -> None:
        """Only after the whole response has been read and if the upstream keeps it open."""
        connection.idle_since_s = time.monotonic()
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.client.close()

    def close(self) -> None:
        """Closes idle connections; those in use close when they are released."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.client.close()

    def _pop_idle(self) -> PooledConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def new_client(self, timeout_s: float) -> http.client.HTTPConnection:
        """A client of its own, not yet connected; the caller closes it."""
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=self._tls
        )

    def _connect(self) -> http.client.HTTPConnection:
        client = self.new_client(self._connect_timeout_s)
        client.connect()  # sets TCP_NODELAY itself
        # A stream has no read time-out, so a machine that died must be found by probes.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        return client


def _is_stale(connection: PooledConnection) -> bool:
    """Idle for too long, or closed by the upstream: then its socket is readable."""
    if time.monotonic() - connection.idle_since_s > MAX_IDLE_S:
        return True
    poll = select.poll()
    poll.register(connection.socket, select.POLLIN)
    return bool(poll.poll(0))
