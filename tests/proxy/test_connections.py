"""Connections to upstreams."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from proxy.upstreams import connections
from proxy.upstreams.connections import ConnectionPool
from proxy.upstreams.reply import UpstreamConnection
from tests.proxy.support import DEADLINE_S, until

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
ENGINES_KEEP_S = 2.5  # half of what they keep one, as a busy one looks late
BEYOND_ALL_BUFFERS_BYTES = 64 * 1024 * 1024


Check = Callable[[ConnectionPool, UpstreamConnection, socket.socket], None]


def with_idle_connection(check: Check) -> None:
    """Runs the check with a pool, its one connection, which has been answered, and the server's
    end of that."""

    async def run(listener: socket.socket) -> None:
        pool = ConnectionPool("http", "127.0.0.1", listener.getsockname()[1], DEADLINE_S)
        connection = await pool.connect()
        upstream, _ = listener.accept()
        with upstream:
            connection.begin("GET", b"GET / HTTP/1.1\r\n\r\n")
            upstream.sendall(ANSWER)
            await connection.answered()
            pool.release(connection)
            check(pool, connection, upstream)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(run(listener))


def test_idle_connection_with_an_answer_that_nobody_asked_for_is_not_taken() -> None:
    """The event loop may not have come to read it."""

    def check(
        pool: ConnectionPool, connection: UpstreamConnection, upstream: socket.socket
    ) -> None:
        assert pool.take_idle() is connection
        pool.release(connection)
        upstream.sendall(ANSWER)
        until(lambda: not connection.is_silent, "the answer")
        assert pool.take_idle() is None

    with_idle_connection(check)


def test_connection_that_a_server_is_about_to_close_is_not_taken() -> None:
    def check(pool: ConnectionPool, connection: UpstreamConnection, _: socket.socket) -> None:
        connection.idle_since_s -= ENGINES_KEEP_S
        assert pool.take_idle() is None

    with_idle_connection(check)


def test_upstream_that_takes_nothing_of_a_body_counts_as_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose machine died does, and nothing else would say so."""
    monkeypatch.setattr(connections, "MAX_UNTAKEN_S", 0.3)

    async def upload(port: int) -> None:
        connection = await ConnectionPool("http", "127.0.0.1", port, DEADLINE_S).connect()
        connection.begin("POST", b"POST / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            await connection.send(bytes(BEYOND_ALL_BUFFERS_BYTES))
            assert not connection.is_silent
            await connection.answered()

    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(OSError, match="timed out"):
        asyncio.run(upload(deaf.getsockname()[1]))
