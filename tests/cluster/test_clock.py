"""Setting the machine's clock moves times of day, and nothing that is counted or waited for."""

import inspect
import time

import pytest

from cluster import clock
from cluster.controller.loop import Controller, Rollout
from cluster.controller.pages import PageReader


@pytest.mark.parametrize("set_by_s", [-86_400, 3600])
def test_the_clock_goes_on_evenly_when_the_machines_is_set(
    set_by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_day, before_s = time.time, clock.steady_s()
    monkeypatch.setattr(time, "time", lambda: of_day() + set_by_s)
    assert clock.of_day_s(before_s) == before_s + set_by_s
    assert clock.steady_s() - before_s < abs(set_by_s) / 2


def test_all_that_counts_or_waits_goes_by_it() -> None:
    for each in (Controller, Rollout, PageReader):
        assert inspect.signature(each).parameters["clock"].default is clock.steady_s
