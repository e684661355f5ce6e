"""Following a search's process: trials that are told, its end however it comes, and one at a time.

The processes here only print, in the form that tests/lab/demo/test_split.py holds real ones
to.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from benchmarking.serving import eventually
from inference_api.demo_search import KEPT_LINES, MAX_LINE, DemoSearch, DemoStatus, Layers
from inference_api.errors import DemoRunning, Unavailable
from inference_api.inference_api_server import create_server
from inference_api.routes.demo_search import create_blueprint
from inference_api.settings import Settings
from weights.settings import Settings as WeightsSettings

HEADER = "trial  layers            tokens/s      best  proposed by"
TRIALS = ["    1  2-2-1               2216.2    2216.2  random",
          "    2  3-1-1               1799.6    2216.2  slowest_stage"]  # fmt: skip
WAITS = "import time; time.sleep(600)"

Told = list[tuple[str, Layers, float]]
Start = Callable[[str], DemoSearch]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def search(told: Told) -> Iterator[Start]:
    """A search whose process runs this code."""
    made: list[DemoSearch] = []

    def make(code: str) -> DemoSearch:
        made.append(DemoSearch(lambda *trial: told.append(trial), (sys.executable, "-c", code)))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert each.state.status not in (DemoStatus.RUNNING, DemoStatus.STOPPING)


def has_status(search: DemoSearch, wanted: DemoStatus) -> Callable[[], bool]:
    return lambda: search.state.status == wanted


def test_trials_are_told_as_they_are_printed(search: Start, told: Told) -> None:
    printed = "\n".join([HEADER, *TRIALS, "", "best: 2-2-1 layers, 1 tokens/s"])
    demo = search(f"print({printed!r})")
    started = demo.start(8)
    assert started.status == DemoStatus.RUNNING
    eventually(has_status(demo, DemoStatus.ENDED))
    assert told == [
        (started.session_id, (2, 2, 1), 2216.2),
        (started.session_id, (3, 1, 1), 1799.6),
    ]
    assert demo.state.trials == 2
    assert demo.state.lines[-1] == "best: 2-2-1 layers, 1 tokens/s"


def test_there_is_one_at_a_time_and_it_can_be_stopped(search: Start) -> None:
    demo = search(WAITS)
    demo.start(8)
    with pytest.raises(DemoRunning):
        demo.start(8)
    assert demo.stop().status in (DemoStatus.STOPPING, DemoStatus.STOPPED)
    eventually(has_status(demo, DemoStatus.STOPPED))
    assert demo.stop().status == DemoStatus.STOPPED
    assert demo.start(8).status == DemoStatus.RUNNING


def test_none_is_started_where_memory_is_short() -> None:
    demo = DemoSearch(lambda *trial: None, (sys.executable, "-c", WAITS), lambda: 5 * 2**20)
    with pytest.raises(Unavailable, match="needs 2048 MiB of free memory and 5 MiB are free"):
        demo.start(8)
    assert demo.state.status == DemoStatus.IDLE


def test_a_failure_says_why(search: Start) -> None:
    demo = search("import sys; sys.exit('the pipeline has ended')")
    demo.start(8)
    eventually(has_status(demo, DemoStatus.FAILED))
    assert demo.state.lines == ("the pipeline has ended",)


def test_what_is_printed_without_end_is_bounded(search: Start) -> None:
    demo = search("for _ in range(5000): print('x' * 999)")
    demo.start(8)
    eventually(has_status(demo, DemoStatus.ENDED))
    assert len(demo.state.lines) == KEPT_LINES
    assert max(map(len, demo.state.lines)) == MAX_LINE


def test_a_store_that_fails_ends_it() -> None:
    def tell(*trial: Any) -> None:
        raise OSError("the disk is full")

    code = f"print({TRIALS[0]!r}, flush=True); {WAITS}"
    demo = DemoSearch(tell, (sys.executable, "-c", code))
    demo.start(8)
    eventually(has_status(demo, DemoStatus.FAILED))
    assert demo.state.lines[-1] == "OSError: the disk is full"


def test_over_http(search: Start) -> None:
    app = Flask("demo")
    app.register_blueprint(create_blueprint(search(WAITS)))
    client = app.test_client()
    idle = client.get("/weights/demo").get_json()
    assert (idle["status"], idle["session_id"], idle["lines"]) == ("idle", "", [])
    assert client.post("/weights/demo", json={"max_trials": 3}).status_code == 202
    assert client.get("/weights/demo").get_json()["max_trials"] == 3
    assert client.get("/weights/demo").get_json()["status"] == "running"
    assert client.delete("/weights/demo").status_code == 202


def test_bad_bodies_and_pages_of_others_start_nothing(tmp_path: Path) -> None:
    app = create_server(Settings(), None, WeightsSettings(db_path=tmp_path / "weights.db"))
    client = app.test_client()
    foreign = {"Sec-Fetch-Site": "cross-site"}
    asked = {"max_trials": 3}
    assert client.post("/weights/demo", json=asked, headers=foreign).status_code == 403
    for body in ({}, {"max_trials": 0}, {"max_trials": 21}, {"max_trials": "3"}, {"trials": 3}):
        assert client.post("/weights/demo", json=body).status_code == 400
    assert client.post("/weights/demo").status_code == 400
    assert client.get("/weights/demo").get_json()["status"] == "idle"
