"""The walks of docs/architecture.md are the ways of a chat's token, an optimization, a cycle of the
controller and a benchmark's row."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from inference_api.inference_api_server import create_server, server_of
from inference_api.settings import Settings
from lab.kit.scripted_server import scripted
from lab.kit.servers import ROOT, eventually
from optimizer.app import create_app
from optimizer.settings import Settings as OptimizerSettings
from tests.benchmarking.rows.test_run import KNOWN, benchmark
from tests.cluster.conftest import optimizer_url  # noqa: F401
from tests.cluster.fleet import system_json
from tests.cluster.test_cycle import LOW, World
from tests.optimizer.support import server, system_data

WALKS = {
    "One chat token": 17,
    "One optimization": 9,
    "One proxied stream": 12,
    "One controller cycle": 11,
    "One benchmark row": 12,
}


def named_files(walk: str) -> set[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, section = page.partition(f"## {walk}")
    return set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", section.partition("\n## ")[0]))


@contextmanager
def passed() -> Iterator[set[str]]:
    """The files of this thread, and of those that it starts, whose functions are called."""
    names: set[str] = set()
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            names.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        paths = map(Path, names)
        files |= {str(each.relative_to(ROOT)) for each in paths if each.is_relative_to(ROOT)}


@pytest.mark.parametrize(("walk", "at_most"), WALKS.items())
def test_a_walk_is_short_and_of_files_that_are_there(walk: str, at_most: int) -> None:
    files = named_files(walk)
    assert 0 < len(files) <= at_most
    folder = ROOT / "inference_api" if walk == "One chat token" else ROOT
    assert [each for each in files if not (folder / each).exists()] == []


def test_a_chats_token() -> None:
    app = create_server(Settings(user_rows=1))
    with passed() as files:
        server_of(app).start()
        client = app.test_client()
        eventually(lambda: client.get("/ready").status_code == 200)
        asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        answer = client.post("/v1/chat/completions", json=asked | {"stream": True})
        assert answer.get_data().endswith(b"[DONE]\n\n")
        server_of(app).stop()
    assert {f"inference_api/{each}" for each in named_files("One chat token")} <= files


def test_an_optimization() -> None:
    client = create_app(OptimizerSettings(stateful=False)).test_client()
    body: dict[str, Any] = system_data([server()])
    with passed() as files:
        assert client.post("/optimizeOne", json=body).status_code == 200
    assert named_files("One optimization") <= files


def test_a_controllers_cycle(optimizer_url: str) -> None:  # noqa: F811
    world = World(optimizer_url, system_json(rate=LOW))
    with passed() as files:
        world.period(600.0)
        world.period(600.0)
    own = {"cluster/controller/loop.py", "cluster/actuators/__init__.py"}  # a thread, an interface
    readers = {"cluster/controller/pages.py", "cluster/engines.py"}  # the world's own
    assert named_files("One controller cycle") - own - readers <= files


def test_a_benchmarks_row(tmp_path: Path) -> None:
    with scripted({"m": KNOWN}) as (_, base), passed() as files:
        status, said = benchmark(tmp_path, base, "m,40,4,1,1,,,")
    assert status == 0, said
    sending = {f"benchmarking/load/{name}.py" for name in ("generator", "client", "answers")}
    assert named_files("One benchmark row") - sending <= files  # that is another process
