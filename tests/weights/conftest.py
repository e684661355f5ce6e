"""Stores and clients of the weights service; a real Redis where one is needed."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from weights.settings import Settings


@pytest.fixture(autouse=True)
def _without_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields.values():
        monkeypatch.delenv(str(field.validation_alias), raising=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server of this test run, with an append-only file synced at every write."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.fail("redis-server is not installed: sudo apt-get install -y redis-server")
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
         "--appendonly", "yes", "--appendfsync", "always", "--save", ""],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert any("Ready to accept connections" in line for line in server.stdout)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.communicate(timeout=10)


@pytest.fixture
def clean_redis_url(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return redis_url


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "weights.db"
