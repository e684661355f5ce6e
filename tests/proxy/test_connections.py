"""Connections to upstreams."""

import asyncio
import socket

import pytest

from proxy.upstreams import connections
from proxy.upstreams.connections import ConnectionPool
from tests.proxy.support import DEADLINE_S

BEYOND_ALL_BUFFERS_BYTES = 64 * 1024 * 1024


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
            assert connection.is_closed
            await connection.answered()

    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(OSError, match="timed out"):
        asyncio.run(upload(deaf.getsockname()[1]))
