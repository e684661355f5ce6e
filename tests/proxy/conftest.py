"""Fixtures of the proxy's tests: one upstream and one proxy per module, unless a test asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.support import (
    ProxyProcess,
    ScriptedUpstream,
    running_proxy,
    wait_for_ending_proxies,
)


@pytest.fixture(scope="session", autouse=True)
def _ended_proxies() -> Iterator[None]:
    yield
    wait_for_ending_proxies()


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    server = ScriptedUpstream()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def proxy(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    directory: Path = tmp_path_factory.mktemp("proxy")
    with running_proxy(directory, upstream.url) as process:
        yield process
