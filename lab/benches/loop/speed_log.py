"""Records a server's reports of its steps during a measurement."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarking.errors import InvalidResults
from lab.kit.moments import StepsCourse
from lab.kit.step_counts import CountedSpeed, StepsWithin, counts_since, slownesses

PERIOD_S = 0.5
JOIN_S = 30.0
LEAST_STEPS_S = 0.2  # least time of steps that shows a speed


@dataclass(frozen=True, slots=True)
class Reading:
    """A report. `at_s` is on the clock of the run."""

    at_s: float
    speed: CountedSpeed


@contextmanager
def speed_log(ask: Callable[[], CountedSpeed | None], origin_s: float) -> Iterator[list[Reading]]:
    """Asks twice a second in a thread until the block ends, and then once more. The caller may read
    the list after the block; it stays empty if the server reports nothing."""
    readings: list[Reading] = []
    ends = threading.Event()

    def read() -> bool:
        try:
            speed = ask()
        except InvalidResults:
            return True  # the next question may be answered
        if speed is not None:
            readings.append(Reading(time.monotonic() - origin_s, speed))
        return speed is not None

    def run() -> None:
        while read() and not ends.wait(PERIOD_S):
            pass

    thread = threading.Thread(target=run, name="speed-log")
    thread.start()
    try:
        yield readings
    finally:
        ends.set()
        thread.join(JOIN_S)
        read()


def steps_course(readings: Sequence[Reading]) -> StepsCourse | None:
    """Returns the slowness of steps from reading to reading, joining readings with too few steps;
    None if the server does not count steps."""
    moments: list[StepsWithin] = []
    last = readings[0] if readings else None
    for each in readings[1:]:
        assert last is not None
        steps_s = each.speed.steps_s - last.speed.steps_s
        if steps_s >= LEAST_STEPS_S and each.speed.steps_by_tokens:
            counts = counts_since(each.speed.steps_by_tokens, last.speed.steps_by_tokens)
            moments.append(StepsWithin(last.at_s, steps_s, counts))
            last = each
    if not moments:
        return None
    found = slownesses(moments, readings[-1].speed.curve())
    return StepsCourse(tuple(each.from_s for each in moments), tuple(found))
