"""Operators' work waits for a pause, and requests go before it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from inference_api.errors import Unavailable
from inference_api.pipeline import pauses as module
from inference_api.pipeline.pauses import PATIENCE_S, QUIET_S, Pauses
from lab.kit.servers import eventually


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


Ask = Callable[[Pauses, Callable[[], Any]], "Future[Any]"]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Asks on a thread of its own, and returns once the work waits."""
    with ThreadPoolExecutor(1) as requests:

        def asked(pauses: Pauses, work: Callable[[], Any]) -> "Future[Any]":
            answer = requests.submit(pauses.do, work)
            eventually(pauses._waiting.full)
            return answer

        yield asked


def test_work_waits_until_nothing_has_been_done_for_a_while(ask: Ask) -> None:
    clock = Clock()
    pauses = Pauses(clock)
    assert not pauses.turn()
    pauses.worked()
    answer = ask(pauses, lambda: "done")
    for _ in range(3):
        pauses.worked()
        clock.now_s += QUIET_S - 0.1
        assert not pauses.turn()
    clock.now_s += 0.1
    assert pauses.turn()
    assert answer.result(60) == "done"
    assert not pauses.turn()


def test_under_a_light_load_the_first_pause_will_do_after_a_while(ask: Ask) -> None:
    clock = Clock()
    pauses = Pauses(clock)
    pauses.worked()
    answer = ask(pauses, clock)
    pauses.worked()
    while not pauses.turn():
        clock.now_s += QUIET_S / 8
        pauses.worked()
    assert answer.result(60) == 100 + PATIENCE_S


def test_there_is_one_work_at_a_time(ask: Ask) -> None:
    pauses = Pauses(Clock())
    answer = ask(pauses, lambda: 1)
    with pytest.raises(Unavailable, match="no pause"):
        pauses.do(lambda: 2)
    assert pauses.turn()
    assert answer.result(60) == 1


def test_work_that_has_waited_too_long_is_never_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAIT_S", 0.0)
    pauses, done = Pauses(Clock()), list[int]()
    with pytest.raises(Unavailable, match="no pause"):
        pauses.do(lambda: done.append(1))
    pauses._clock.now_s += QUIET_S  # type: ignore[attr-defined]
    assert not pauses.turn()
    assert not done


def test_what_breaks_the_ranks_is_the_decode_threads_to_know_and_the_operators(ask: Ask) -> None:
    pauses = Pauses(Clock())
    answer = ask(pauses, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pauses.turn()
    with pytest.raises(ZeroDivisionError):
        answer.result(60)
