"""Connections to upstreams."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import pytest

from proxy.upstreams import connections
from proxy.upstreams.connections import ConnectionPool
from proxy.upstreams.reply import UpstreamConnection
from tests.proxy.support import DEADLINE_S, until

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
ENGINES_KEEP_S = 2.5  # half of what they keep one, as a busy one looks late
BEYOND_ALL_BUFFERS_BYTES = 64 * 1024 * 1024


class Upstream:
    """A pool, and the server at the other end of its connections."""

    def __init__(self, listener: socket.socket) -> None:
        self.pool = ConnectionPool("http", "127.0.0.1", listener.getsockname()[1], DEADLINE_S)
        self._listener = listener
        self._ends: dict[UpstreamConnection, socket.socket] = {}

    async def answer(self, answer: bytes) -> tuple[UpstreamConnection, bool]:
        """Returns the connection that was used, which is idle again, and whether it was before."""
        idle = self.pool.take_idle()
        connection = idle or await self.pool.connect()
        if idle is None:
            self._ends[connection], _ = self._listener.accept()
        connection.begin("GET", b"GET / HTTP/1.1\r\n\r\n")
        self._ends[connection].sendall(answer)
        await connection.answered()
        while not connection.is_whole:
            await asyncio.sleep(0)
        self.pool.release(connection)
        return connection, idle is not None

    def send(self, connection: UpstreamConnection, data: bytes) -> None:
        """Sends what nobody asked for; nothing is the connection's end."""
        end = self._ends[connection]
        end.sendall(data) if data else end.close()
        until(lambda: not connection.is_silent, "it")

    def close(self) -> None:
        self.pool.close()
        for end in self._ends.values():
            end.close()


def with_upstream(check: Callable[[Upstream], Coroutine[Any, Any, None]]) -> None:
    async def run(listener: socket.socket) -> None:
        with closing(Upstream(listener)) as upstream:
            await check(upstream)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(run(listener))


def test_idle_connection_with_an_answer_that_nobody_asked_for_is_not_taken() -> None:
    """The event loop may not have come to read it."""

    async def check(upstream: Upstream) -> None:
        connection, _ = await upstream.answer(ANSWER)
        assert await upstream.answer(ANSWER) == (connection, True)
        upstream.send(connection, ANSWER)
        assert upstream.pool.take_idle() is None

    with_upstream(check)


def test_connection_that_a_server_is_about_to_close_is_not_taken() -> None:
    async def check(upstream: Upstream) -> None:
        connection, _ = await upstream.answer(ANSWER)
        connection.idle_since_s -= ENGINES_KEEP_S
        assert upstream.pool.take_idle() is None

    with_upstream(check)


def test_connections_are_used_again_after_streams_once_one_has_stayed_open() -> None:
    async def check(upstream: Upstream) -> None:
        on_trial, _ = await upstream.answer(STREAM)
        assert not (await upstream.answer(STREAM))[1]
        on_trial.idle_since_s -= ENGINES_KEEP_S
        assert not (await upstream.answer(STREAM))[1]
        assert (await upstream.answer(STREAM))[1]

    with_upstream(check)


@pytest.mark.parametrize("answer", [ANSWER, STREAM])
def test_connections_are_not_used_again_once_a_server_has_closed_one_that_it_said_it_keeps(
    answer: bytes,
) -> None:
    async def check(upstream: Upstream) -> None:
        upstream.send((await upstream.answer(answer))[0], b"")
        for _ in range(5):
            connection, was_idle = await upstream.answer(answer)
            assert not was_idle
            assert not (await upstream.answer(answer))[1]
            upstream.send(connection, b"")

    with_upstream(check)


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
