"""The metrics port by itself."""

import asyncio
import math
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry

from proxy.probes import MetricsPort
from proxy.settings import Settings
from tests.ports import free_port


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HT"], ids=["silent", "cut"])
def test_a_client_that_sends_too_little_prints_nothing(
    sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(proxy_metrics_port=free_port())

    async def check() -> None:
        port = MetricsPort(settings, lambda path: None, CollectorRegistry())
        await port.start()
        address = settings.proxy_metrics_host, settings.proxy_metrics_port
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            port.crowd.sweep(math.inf)
            await asyncio.sleep(0)
        with suppress(ConnectionResetError):  # swept before its bytes were read
            assert (await reading)[:13] in (b"", b"HTTP/1.1 408 ")
        writer.close()
        port.stop()

    asyncio.run(check())
    assert capfd.readouterr().err == ""
