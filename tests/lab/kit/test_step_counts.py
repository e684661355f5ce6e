"""How slow steps were, told from how many there were of which contents."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarking.analysis.service_curve import Speed
from lab.kit.step_counts import StepCount, StepsWithin, counts_since, slownesses

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
WRONG = Speed(  # of a warm-up that was held up in small steps
    decode_ms=[(1, 0.6, 0.0), (8, 0.6, 0.0), (32, 2.0, 0.0)],
    prefill_ms_per_token=[(0, 0.02, 0.0), (32, 0.0, 0.0)],
).curve()


def took_s(counts: Sequence[StepCount]) -> float:
    return (
        sum(
            steps * (0.25 + 0.1 * tokens) + 0.05 * prompt_tokens
            for tokens, steps, prompt_tokens in counts
        )
        / 1000
    )


def moments(logs: Sequence[float]) -> list[StepsWithin]:
    """Steps of a few sizes that change from moment to moment, each as slow as said."""
    rng = np.random.default_rng(3)
    found = []
    for number, log in enumerate(logs):
        tokens = sorted(int(each) for each in rng.choice(SIZES, 4, replace=False))
        counts = [(each, int(rng.integers(50, 500)), int(rng.integers(0, 900))) for each in tokens]
        found.append(StepsWithin(float(number), math.exp(log) * took_s(counts), counts))
    return found


def test_other_contents_are_no_other_speed() -> None:
    found = slownesses(moments([0.0] * 200), WRONG)
    assert found == pytest.approx([1.0] * 200, rel=0.03)


def test_speed_is_found_whatever_the_contents() -> None:
    rng = np.random.default_rng(4)
    logs = np.cumsum(0.03 * rng.standard_normal(300))
    logs[150:] += math.log(2)  # at once
    found = np.log(slownesses(moments([*logs]), WRONG))
    missed = found - logs - np.mean(found - logs)
    assert np.abs(missed).max() < 0.05
    assert math.sqrt(float(np.mean(missed**2))) < 0.02


def test_step_times_that_the_server_says_are_a_start() -> None:
    """Of two moments with steps of one size each nobody could tell."""
    alone = [StepsWithin(0.0, 0.6, [(1, 1000, 0)]), StepsWithin(1.0, 2.0, [(32, 1000, 0)])]
    assert slownesses(alone, WRONG) == pytest.approx([1.0, 1.0], rel=0.01)


def test_counts_grow_from_answer_to_answer() -> None:
    assert counts_since([(1, 9, 4), (2, 5, 3)], [(1, 4, 4)]) == [(1, 5, 0), (2, 5, 3)]
