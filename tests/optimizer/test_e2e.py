"""The optimizer as users start it: a process, real sockets, a kill and a restart."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.optimizer.support import server, system_data
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


@contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator[tuple[str, Any]]:
    """(base URL, process) of a server that answers."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "INFERNO_PORT": str(port),
             "INFERNO_HOST": "127.0.0.1", **environment},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert any("Booting worker" in line for line in process.stderr)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def call(url: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def kill_worker(process: Any) -> None:
    """SIGKILL to gunicorn and its worker: no handler runs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [process.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)


def test_state_in_memory_is_the_state_on_disk_after_kill_nine(tmp_path: Path) -> None:
    with running(tmp_path, "-m", "optimizer", "-F") as (url, process):
        assert call(f"{url}/optimizeOne", system_data([server("a/b")]))[0] == 200

        def edit(number: int) -> int:
            if number % 5 == 0:
                return call(f"{url}/optimize", {"unlimited": True})[0]
            return call(f"{url}/addServer", server(f"s{number}", 10 + number))[0]

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(edit, range(60))) == {200}
        assert call(f"{url}/getServer/a%2Fb")[1]["desiredAlloc"]["numReplicas"] == 2
        before = call(f"{url}/state")[1]
        kill_worker(process)
    with running(tmp_path, "-m", "optimizer", "-F") as (url, _):
        assert call(f"{url}/state")[1] == before


def test_under_gunicorn_by_its_own_command(tmp_path: Path) -> None:
    arguments = ("-m", "gunicorn", "-c", str(ROOT / "optimizer" / "gunicorn.conf.py"),
                 "optimizer.app:create_app()")  # fmt: skip
    with running(tmp_path, *arguments) as (url, _):
        status, answer = call(f"{url}/optimizeOne", system_data([server()]))
        assert (status, answer["allocations"]["s"]["accelerator"]) == (200, "A")
        assert call(f"{url}/nope") == (404, "404 page not found")
        assert call(f"{url}/optimize", {}) == (404, "404 page not found")


def test_wrong_settings_stop_the_start_with_every_fault(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "optimizer"], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "INFERNO_PORT": "x",
             "OPTIMIZER_THREADS": "0"},
    )  # fmt: skip
    assert process.returncode == 1
    assert "INFERNO_PORT" in process.stderr
    assert "OPTIMIZER_THREADS" in process.stderr


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_store_is_redis_if_a_url_is_set(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url_of_redis = request.getfixturevalue("clean_redis_url") if store == "redis" else ""
    for _ in range(2):
        with running(tmp_path, "-m", "optimizer", "-F", REDIS_URL=url_of_redis) as (url, _):
            call(f"{url}/addModel/m")
            assert call(f"{url}/getModels")[1] == ["m"]
    assert (tmp_path / "var" / "optimizer.db").exists() == (store == "sqlite")
