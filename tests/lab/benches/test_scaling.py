"""The virtual day: the same by the same seed, and a controller that is worth its while."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab.benches.scaling.bench import (
    by_controller,
    by_static,
    by_utilization,
    optimizer,
    sized_day,
    solve,
)

ARGUMENTS = Namespace(servers=6, replicas=60, hours=2.0, period_s=60.0, seed=3)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with optimizer() as url:
        yield url


def test_a_day_costs_less_by_the_controller_and_is_the_same_by_the_same_seed(url: str) -> None:
    day = sized_day(url, ARGUMENTS)
    peak = solve(url, day.document_at(day.rates.max(axis=1)))
    static = by_static(day, peak, ARGUMENTS.seed)
    assert static.within_percent == 100
    assert static.most_replicas == pytest.approx(60, rel=0.5)
    first = by_controller(day, url, ARGUMENTS)
    assert first.cost < static.cost
    assert first.within_percent > 95
    again = by_controller(day, url, ARGUMENTS)
    assert replace(again, cycle_s=()) == replace(first, cycle_s=())
    other = by_utilization(day, peak, 0.65, ARGUMENTS.seed)
    assert 0 < other.within_percent < 100
