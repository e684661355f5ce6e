"""A real optimizer over HTTP, in a thread; and reports without pictures."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from werkzeug.serving import make_server

from benchmarking.report import page
from optimizer.app import create_app
from optimizer.settings import Settings

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
