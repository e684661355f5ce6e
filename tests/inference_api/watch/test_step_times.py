"""Step times are counted by batch size, each step once."""

from dataclasses import replace

import pytest

from inference_api.core.step_times import BUCKETS_S, StepTimes
from inference_api.watch.metrics import ServerMetrics
from tests.inference_api.watch.test_metrics import STATE


def test_batch_sizes_are_together_up_to_a_power_of_two() -> None:
    times = StepTimes()
    for batch_size in range(257):
        times.add(batch_size, 0.001)
    sizes = [(size, sum(counts)) for size, counts, _ in times.by_batch_size()]
    assert sizes == [(0, 1), (1, 1), (2, 1)] + [(2**n, 2 ** (n - 1)) for n in range(2, 9)]


def test_each_bucket_has_the_times_up_to_its_bound() -> None:
    times = StepTimes()
    for seconds in (0.0005, 0.0006, 7.0):
        times.add(3, seconds)
    ((size, counts, sum_s),) = times.by_batch_size()
    assert (size, len(counts)) == (4, len(BUCKETS_S) + 1)
    assert (counts[0], counts[1], counts[-1]) == (1, 1, 1)
    assert sum_s == pytest.approx(7.0011)


def test_what_was_read_does_not_change() -> None:
    times = StepTimes()
    times.add(1, 0.1)
    (before,) = times.by_batch_size()
    times.add(1, 0.1)
    assert sum(before[1]) == 1


def test_they_are_scraped_as_a_histogram() -> None:
    times = StepTimes()
    for seconds in (0.003, 0.004, 0.3):
        times.add(6, seconds)
    metrics = ServerMetrics(["m"], lambda name: replace(STATE, step_times=times))

    def value(suffix: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"inference_step_seconds{suffix}", {"model_name": "m", "batch_size": "8", **labels}
        )

    assert [value("_bucket", le=le) for le in ("0.002", "0.005", "0.5", "+Inf")] == [0, 2, 3, 3]
    assert value("_count") == 3
    assert value("_sum") == pytest.approx(0.307)
