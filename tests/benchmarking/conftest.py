"""A real optimizer over HTTP, in a thread; reports without pictures, and loads that are forked."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from werkzeug.serving import make_server

from benchmarking.load import process
from benchmarking.report import page
from optimizer.app import create_app
from optimizer.settings import Settings
from tests.forked import ForkedProcess, fork_server

POLL_S = 0.01  # how soon it sees that it is to end


@pytest.fixture
def optimizer_url(tmp_path: Path) -> Iterator[str]:
    settings = Settings(stateful=True, store_path=tmp_path / "optimizer.db", redis_url="")
    server = make_server("127.0.0.1", 0, create_app(settings))
    thread = Thread(target=server.serve_forever, args=(POLL_S,), name="optimizer")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have a place for each, in a tenth of the time: report/test_page.py has them drawn."""
    monkeypatch.setattr(page, "to_svg", lambda figure, name: "<svg></svg>")


class _ForkedLoad(ForkedProcess):
    """As much of subprocess.Popen as the parent of a load process uses."""

    def __init__(
        self, command: Sequence[str], cwd: Path, start_new_session: bool, **_: Any
    ) -> None:
        its_input, sending = os.pipe()
        receiving, its_output = os.pipe()
        arguments, server = command[2:], fork_server()  # without `python -m`
        files = (its_output, 2, its_input)
        super().__init__(
            server, server.fork(arguments, files, dict(os.environ), cwd, start_new_session)
        )
        os.close(its_input)
        os.close(its_output)
        self.stdin, self.stdout = os.fdopen(sending, "wb"), os.fdopen(receiving, "rb")

    def __enter__(self) -> "_ForkedLoad":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdin.close()
        self.stdout.close()
        self.wait()


@pytest.fixture
def forked_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load processes that need not import what they run: most of what short rows take. Those of
    load/test_load.py, and of commands that tests start as users do, are started as they are."""
    started = SimpleNamespace(Popen=_ForkedLoad, PIPE=subprocess.PIPE)
    monkeypatch.setattr(process, "subprocess", started)
