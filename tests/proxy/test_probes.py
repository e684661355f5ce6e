"""The metrics port by itself."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from prometheus_client import CollectorRegistry

from proxy.probes import MetricsPort
from proxy.settings import Settings
from tests.ports import free_port

VERBS = (b"POST", b"PUT", b"DELETE", b"OPTIONS")


@asynccontextmanager
async def connected() -> AsyncIterator[
    tuple[MetricsPort, asyncio.StreamReader, asyncio.StreamWriter]
]:
    """Yields a port, and a connection to it."""
    settings = Settings(proxy_metrics_port=free_port())
    port = MetricsPort(settings, lambda path: None, CollectorRegistry())
    await port.start()
    try:
        reader, writer = await asyncio.open_connection(
            settings.proxy_metrics_host, settings.proxy_metrics_port
        )
        yield port, reader, writer
        writer.close()
    finally:
        port.stop()


@pytest.mark.parametrize(
    ("request_line", "status", "text"),
    [
        (b"GET /metrics?x=1", b"200", b"\r\n\r\n"),
        (b"HEAD /metrics", b"200", b"\r\n\r\n"),
        (b"GET /metric", b"404", b"This port has /metrics, /health and /ready."),
        *((verb + b" /metrics", b"405", b"send GET, HEAD") for verb in VERBS),
    ],
)  # fmt: skip
def test_the_port_says_what_it_has(request_line: bytes, status: bytes, text: bytes) -> None:
    async def check() -> None:
        async with connected() as (_, reader, writer):
            writer.write(request_line + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
        assert answer.split()[1] == status
        assert text in answer
        assert (b"\r\nAllow: GET, HEAD\r\n" in answer) == (status == b"405")

    asyncio.run(check())


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HT"], ids=["silent", "cut"])
def test_a_client_that_sends_too_little_prints_nothing(
    sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    async def check() -> None:
        async with connected() as (port, reader, writer):
            writer.write(sent)
            reading = asyncio.create_task(reader.read())
            while not reading.done():
                port.crowd.sweep(math.inf)
                await asyncio.sleep(0)
            with suppress(ConnectionResetError):  # swept before its bytes were read
                assert (await reading)[:13] in (b"", b"HTTP/1.1 408 ")

    asyncio.run(check())
    assert capfd.readouterr().err == ""
