"""For all tests: no setting of the surrounding shell, and a real Redis where one is needed."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pydantic_settings import BaseSettings

from inference_api.settings import Settings as ApiSettings
from optimizer.settings import Settings as OptimizerSettings
from tests.ports import free_port
from weights.settings import Settings as WeightsSettings

SETTINGS: tuple[type[BaseSettings], ...] = (ApiSettings, OptimizerSettings, WeightsSettings)

# A shell that starts the tests in the background lets them, and whatever they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _without_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in SETTINGS:
        for name, field in settings.model_fields.items():
            monkeypatch.delenv(str(field.validation_alias or name).upper(), raising=False)


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
        server.communicate(timeout=60)


@pytest.fixture
def clean_redis_url(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return redis_url


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Of a file in a folder that is not there yet."""
    return tmp_path / "state" / "store.db"
