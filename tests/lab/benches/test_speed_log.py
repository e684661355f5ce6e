"""What a server says of its steps, asked once a second beside a load."""

import threading
import time
from collections.abc import Callable

import pytest

from benchmarking.errors import InvalidResults
from lab.benches.loop import speed_log as module
from lab.benches.loop.speed_log import Reading, speed_log, steps_course
from lab.kit.step_counts import CountedSpeed


def said(steps_s: float, steps: int) -> CountedSpeed:
    return CountedSpeed(
        decode_ms=[(1, 2.0, 0.1)],
        prefill_ms_per_token=[(0, 0.1, 0.01)],
        steps_s=steps_s,
        steps_by_tokens=[(1, steps, 0)] if steps else [],
    )


def answers(*each: CountedSpeed | InvalidResults | None) -> Callable[[], CountedSpeed | None]:
    """In turn, and the last for ever."""
    left = list(each)

    def ask() -> CountedSpeed | None:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, InvalidResults):
            raise answer
        return answer

    return ask


def test_a_server_is_asked_until_the_end_and_then_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    asked = threading.Semaphore(0)
    ask = answers(said(1, 1), InvalidResults("busy"), said(2, 2))

    def counted() -> CountedSpeed | None:
        asked.release()
        return ask()

    with speed_log(counted, time.monotonic()) as readings:
        for _ in range(3):
            assert asked.acquire(timeout=10)
    steps_s = [reading.speed.steps_s for reading in readings]
    assert steps_s[:2] == [1, 2]
    assert readings == sorted(readings, key=lambda reading: reading.at_s)
    assert not [thread for thread in threading.enumerate() if thread.name == "speed-log"]


def test_of_a_server_that_says_nothing_there_is_nothing() -> None:
    with speed_log(answers(None), time.monotonic()) as readings:
        pass
    assert readings == []


def test_steps_are_as_slow_as_the_server_counts_from_reading_to_reading() -> None:
    course = steps_course(
        [
            Reading(0.0, said(0.0, 0)),
            Reading(1.0, said(1.0, 200)),
            Reading(2.0, said(2.0, 300)),
            Reading(2.5, said(2.1, 305)),  # too little to tell
            Reading(3.0, said(3.0, 350)),
            Reading(4.0, said(3.0, 350)),
        ]
    )
    assert course is not None
    assert course.from_s == (0.0, 1.0, 2.0)
    mean_s = 3.0 / 350
    assert course.slownesses == pytest.approx([0.005 / mean_s, 0.01 / mean_s, 0.02 / mean_s])
    first, second, third = course.slownesses
    mean = course.slowness(0.5, 2.5)
    assert mean == pytest.approx((0.5 * first + 1 * second + 0.5 * third) / 2)
    assert course.course(0.5, 2.5) == (
        (0.5, first / mean),
        (1.0, second / mean),
        (2.0, third / mean),
    )
    assert course.slowness(-2.0, -1.0) == first
    assert course.course(8.0, 9.0) == ((8.0, 1.0),)


def test_of_a_server_that_does_not_count_its_steps_nothing_is_known() -> None:
    assert steps_course([]) is None
    assert steps_course([Reading(0.0, said(0, 0)), Reading(9.0, said(0, 0))]) is None
