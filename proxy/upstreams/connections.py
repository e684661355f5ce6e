"""Kept-alive connections to one upstream. Event loop only."""

import asyncio
import ssl

from proxy.sockets import find_dead_peers
from proxy.upstreams.reply import UpstreamConnection

# Servers close idle connections: Hearth after 75 s; vLLM, SGLang and llama.cpp after 5 s. A request
# on one that closes is answered by another replica, if there is one. A server short of processor
# time notices seconds late that a connection was idle: hence less than half.
MAX_IDLE_S = 2.0
MAX_IDLE_CONNECTIONS = 256
MAX_UNTAKEN_S = 60.0  # time for which an upstream may take nothing of a body


class ConnectionPool:
    """Idle connections to one address, the most recently used first.

    A server may close a connection after an answer without a word: llama.cpp's does so after
    chunked ones, which say `Keep-Alive: timeout=5`. A request on its way then is lost, as it may
    have begun. So after chunked answers connections are used again only once one, which is on
    trial, has stayed open for `MAX_IDLE_S`; and after answers of either kind no longer once the
    server has closed one sooner, until another trial.
    """

    def __init__(self, scheme: str, host: str, port: int, connect_timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._tls = ssl.create_default_context() if scheme == "https" else None
        self._idle: list[UpstreamConnection] = []
        self._keeps = {False: True, True: False}  # whether the server does, after chunked ones, too
        self._on_trial: dict[bool, UpstreamConnection] = {}
        self._is_closed = False

    def take_idle(self) -> UpstreamConnection | None:
        """A live idle connection, if there is one."""
        fresh_s = asyncio.get_running_loop().time() - MAX_IDLE_S
        for is_chunked, connection in list(self._on_trial.items()):
            if not connection.is_silent or connection.idle_since_s <= fresh_s:
                self._keeps[is_chunked] = connection.is_silent
                self._on_trial.pop(is_chunked).abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_silent and connection.idle_since_s > fresh_s:
                return connection
            if not connection.is_silent:
                self.distrust(connection)
            connection.abort()
        return None

    def release(self, connection: UpstreamConnection) -> None:
        """Keep it if it can serve again; close it if not."""
        is_chunked = connection.was_chunked
        if not connection.can_be_reused or self._is_closed:
            connection.abort()
        elif self._keeps[is_chunked] and len(self._idle) < MAX_IDLE_CONNECTIONS:
            connection.rest()
            self._idle.append(connection)
        elif not self._keeps[is_chunked] and is_chunked not in self._on_trial:
            connection.rest()
            self._on_trial[is_chunked] = connection
        else:
            connection.abort()

    def distrust(self, connection: UpstreamConnection) -> None:
        """The server closed it after its last answer, unlike what it said."""
        self._keeps[connection.was_chunked] = False

    def close(self) -> None:
        """Closes idle connections; those in use close when they are released."""
        idle, self._idle, self._is_closed = self._idle, [], True
        for connection in (*idle, *self._on_trial.values()):
            connection.abort()
        self._on_trial.clear()

    async def connect(self) -> UpstreamConnection:
        """A new one. Raises OSError or TimeoutError when the upstream cannot be reached."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_s):
            transport, connection = await loop.create_connection(
                UpstreamConnection, self._host, self._port, ssl=self._tls
            )
        # A stream has no read time-out.
        find_dead_peers(transport.get_extra_info("socket"), MAX_UNTAKEN_S)
        return connection
