"""SPLIT=auto against a real weights service: in pauses, until trials stop paying."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import pytest
from werkzeug.serving import make_server

from inference_api.inference_api_server import create_server
from inference_api.pipeline.split_search import SearchFailed, SplitSearch
from inference_api.pipeline.split_tuner import (
    BRIEF_MEASURE_S,
    MAX_TRIALS,
    PATIENCE_S,
    QUIET_S,
    RETRY_S,
    SplitTuner,
)
from inference_api.pipeline.splits import Split, equal_split
from inference_api.settings import Settings
from lab.demo.split.tune import weights_service
from lab.kit.servers import eventually
from optimizer.settings import Settings as OptimizerSettings
from tests.ports import free_port
from weights.settings import Settings as WeightsSettings

SPEEDS = (4, 2, 1)
NUM_LAYERS = 14
BEST = (8, 4, 2)


class Ranks:
    """Their speeds are as SPEEDS, and measured without noise."""

    max_rows = 32

    def __init__(self) -> None:
        self.split = equal_split(NUM_LAYERS, len(SPEEDS))
        self.measured: list[Split] = []
        self.seconds: list[float] = []

    def set_split(self, split: Split) -> None:
        assert split != self.split
        self.split = split

    def tokens_per_s(self, seconds: float, num_rows: int) -> float:
        self.measured.append(self.split)
        self.seconds.append(seconds)
        slowest = max(count / speed for count, speed in zip(self.split, SPEEDS, strict=True))
        return num_rows / slowest


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class AtOnce(Executor):
    """For tests of what is asked when: on their own thread."""

    def submit(self, do: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        answer = Future[Any]()
        try:
            answer.set_result(do(*given, **named))
        except SearchFailed as error:
            answer.set_exception(error)
        return answer


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with weights_service(None) as address:
        yield address


def search_of(url: str, session_id: str) -> SplitSearch:
    return SplitSearch(url, session_id, len(SPEEDS), NUM_LAYERS, seed=1)


def test_trials_end_with_a_good_split_which_the_next_server_begins_with(url: str) -> None:
    clock, ranks = Clock(), Ranks()
    search = search_of(url, "a model/with a slash, 3 ranks")
    tuner = SplitTuner(search, clock, AtOnce())
    for _ in range(MAX_TRIALS + 1):
        tuner.turn(ranks)
        clock.now_s += QUIET_S
    assert 3 <= len(ranks.measured) <= MAX_TRIALS
    assert all(sum(split) == NUM_LAYERS and min(split) >= 1 for split in ranks.measured)
    assert max(abs(one - best) for one, best in zip(ranks.split, BEST, strict=True)) <= 1
    assert not tuner.turn(ranks)
    if search.has_converged():
        later = Ranks()
        assert SplitTuner(search, clock, AtOnce()).turn(later)
        assert (later.measured, later.split) == ([], ranks.split)


def test_server_that_wants_tokens_takes_those_of_its_secret(tmp_path: Path) -> None:
    secret = "a secret that is long enough for HS256"
    app = create_server(
        Settings(jwt_secret=secret), OptimizerSettings(), WeightsSettings(db_path=tmp_path / "w.db")
    )
    server = make_server("127.0.0.1", 0, app, threaded=True)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            split, _ = replace(search_of(url, "s"), jwt_secret=secret).ask()
            assert sum(split) == NUM_LAYERS
            for wrong in (None, f"not {secret}"):
                with pytest.raises(SearchFailed, match="token"):
                    replace(search_of(url, "s"), jwt_secret=wrong).ask()
        finally:
            server.shutdown()
            server.server_close()
    assert secret not in repr(replace(search_of(url, "s"), jwt_secret=secret))


def test_work_puts_trials_off(url: str) -> None:
    clock, ranks = Clock(), Ranks()
    tuner = SplitTuner(search_of(url, "busy"), clock, AtOnce())
    for _ in range(3):
        tuner.worked()
        clock.now_s += QUIET_S - 0.1
        assert not tuner.turn(ranks)
    assert ranks.measured == []
    clock.now_s += 0.1
    assert tuner.turn(ranks)
    assert len(ranks.measured) == 1


def test_under_a_light_load_a_short_pause_will_do_at_times(url: str) -> None:
    clock, ranks = Clock(), Ranks()
    tuner = SplitTuner(search_of(url, "light"), clock, AtOnce())
    tried_s = []
    while clock.now_s < 100 + 3 * PATIENCE_S + 1:
        tuner.worked()
        clock.now_s += QUIET_S / 8
        if tuner.turn(ranks):
            tried_s.append(clock.now_s - 100)
    assert tried_s == [PATIENCE_S, 2 * PATIENCE_S, 3 * PATIENCE_S]
    assert ranks.seconds == [BRIEF_MEASURE_S] * 3


def test_service_that_is_not_there_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock, ranks = Clock(), Ranks()
    tuner = SplitTuner(search_of(f"http://127.0.0.1:{free_port()}", "s"), clock, AtOnce())
    for _ in range(2):
        assert not tuner.turn(ranks)
    assert ranks.split == equal_split(NUM_LAYERS, len(SPEEDS))
    [record] = caplog.records  # it is not asked again at once
    assert "SPLIT=auto stays at 5-5-4 for now" in record.message
    clock.now_s += RETRY_S
    tuner.turn(ranks)
    assert len(caplog.records) == 2


def test_decode_thread_goes_on_while_the_service_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every call is made on another thread, and no turn waits for one."""
    answers, told = Event(), list[object]()

    def call(search: SplitSearch, verb: str, path: str, body: object = None) -> dict[str, Any]:
        assert current_thread() is not decode_thread
        assert answers.wait(60)
        if path == "/weights_update":
            told.append(body)
        converged = {"convergence": {"converged": bool(told)}}
        return {
            "weights": [8 / 14, 4 / 14, 2 / 14],
            "model": "m",
            "layers_per_node": BEST,
        } | converged

    decode_thread = current_thread()
    monkeypatch.setattr(SplitSearch, "_call", call)
    clock, ranks = Clock(), Ranks()
    tuner = SplitTuner(search_of("http://127.0.0.1", "s"), clock)
    clock.now_s += QUIET_S
    for _ in range(3):
        assert not tuner.turn(ranks)  # it would wait for ever
    assert ranks.measured == []
    answers.set()
    eventually(lambda: tuner.turn(ranks))
    assert ranks.measured == [BEST]
    eventually(lambda: told)
    eventually(lambda: tuner._proposed is not None and tuner._proposed.done())
    tuner.turn(ranks)
    clock.now_s += PATIENCE_S
    assert not tuner.turn(ranks)  # it is over
    tuner.close()


@pytest.mark.parametrize(
    "answer",
    [[], {}, {"weights": None}, {"weights": [1.0]}, {"weights": [0.5, 0.5, 0.0], "model": "m"},
     {"weights": [float("nan")] * 3, "model": "m"}, {"weights": ["1"] * 3, "model": "m"},
     {"weights": [1e300, 0.5, 0.1], "model": "m"}],
    ids=str,
)  # fmt: skip
def test_proposal_that_is_no_split_is_refused(
    answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SplitSearch, "_call", lambda *_: answer)
    with pytest.raises(SearchFailed):
        search_of("http://127.0.0.1", "s").ask()
