"""Kept-alive connections to one upstream. Event loop only."""

import asyncio
import ssl

from common.connections.sockets import find_dead_peers
from proxy.upstreams.reply import UpstreamConnection

# Servers close idle connections: Hearth after 75 s; vLLM, SGLang and llama.cpp after 5 s. If one
# closes when a request is sent, another replica answers, if there is one. Less than half of 5 s,
# because a server short of processor time is seconds late in noticing what happens.
MAX_IDLE_S = 2.0
MAX_IDLE_CONNECTIONS = 256
MAX_UNTAKEN_S = 60.0  # longest time in which an upstream may take nothing of a body


class ConnectionPool:
    """Idle connections to one address, the most recently used first.

    A server may close a connection after an answer without announcing it: llama.cpp's does so after
    chunked answers, although they say `Keep-Alive: timeout=5`. A request sent at that time is lost,
    because it may have begun. So after a chunked answer connections are reused only once one of
    them, on trial, has stayed open for `MAX_IDLE_S`. Once the server has closed a connection sooner
    after an answer of either kind, connections are not reused after that kind until a new trial.
    """

    def __init__(self, scheme: str, host: str, port: int, connect_timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._tls = ssl.create_default_context() if scheme == "https" else None
        self._idle: list[UpstreamConnection] = []
        self._keeps = {False: True, True: False}  # was_chunked: does the server keep it open?
        self._on_trial: dict[bool, UpstreamConnection] = {}
        self._is_closed = False

    def take_idle(self) -> UpstreamConnection | None:
        """Returns a live idle connection, if there is one."""
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
        """Keeps a connection if it can serve again, and closes it if not."""
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
        """Records that the server closed a connection after its answer, without announcing it."""
        self._keeps[connection.was_chunked] = False

    def close(self) -> None:
        """Closes idle connections; those in use close when they are released."""
        idle, self._idle, self._is_closed = self._idle, [], True
        for connection in (*idle, *self._on_trial.values()):
            connection.abort()
        self._on_trial.clear()

    async def connect(self) -> UpstreamConnection:
        """Opens a connection. Raises OSError or TimeoutError if the upstream is unreachable."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_s):
            transport, connection = await loop.create_connection(
                UpstreamConnection, self._host, self._port, ssl=self._tls
            )
        # Streams have no read timeout, so this finds upstreams that are gone.
        find_dead_peers(transport.get_extra_info("socket"), MAX_UNTAKEN_S)
        return connection
