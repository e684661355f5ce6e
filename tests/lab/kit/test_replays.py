"""Given requests, simulated on a machine whose speed may change."""

import numpy as np
import pytest

from lab.kit.course import Course
from lab.kit.replays import simulated
from optimizer.candidates.curves import step_curve
from optimizer.simulation.estimate import Estimate
from optimizer.simulation.server import Server
from optimizer.simulation.traffic import Requests
from optimizer.spec import ServiceCurve
from tests.optimizer.curves import MEASURED

APART_MS, AT_ONCE_MS = 5000.0, 0.0


def run(every_ms: float, *changes: tuple[float, float], rows: int = 32) -> Estimate:
    count = 20
    arrivals = np.array([every_ms * number for number in range(count)])
    equal = [np.full(count, tokens) for tokens in (64, 96, 0)]
    server = Server(step_curve(ServiceCurve.model_validate(MEASURED)), rows, 320)
    return simulated(server, Requests(arrivals, *equal), 0, Course.of(changes))


def test_requests_apart_do_not_meet_and_all_at_once_wait() -> None:
    apart = run(APART_MS)
    alone = 0.8 + 63 * 0.02  # a step, and the prompt but its last token
    assert apart.ttft.value == pytest.approx(alone, rel=1e-6)
    assert apart.itl.value == pytest.approx(0.8, rel=1e-6)
    assert run(AT_ONCE_MS).ttft.value > 5 * alone


def test_a_slower_machine_takes_longer_from_the_moment_on() -> None:
    steady, half = run(APART_MS), run(APART_MS, (0.0, 2.0))
    assert half.ttft.value == pytest.approx(2 * steady.ttft.value, rel=1e-6)
    assert half.utilization == pytest.approx(2 * steady.utilization, rel=1e-6)
    later = run(APART_MS, (0.0, 1.0), (49_000.0, 3.0))
    assert later.itl.value == pytest.approx(2 * steady.itl.value, rel=1e-6)
    # Of a queue that begins at once, only what comes after half of it takes longer.
    queue_ms = run(AT_ONCE_MS, rows=1).ttft.value
    slower_ms = run(AT_ONCE_MS, (0.0, 1.0), (queue_ms, 3.0), rows=1).ttft.value
    assert queue_ms < slower_ms < 2 * queue_ms
    assert run(APART_MS, (1e6, 1.0)).ttft.value == pytest.approx(steady.ttft.value)
