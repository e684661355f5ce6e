"""Intervals of forecasts: how wide they are, and how often they hold."""

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from cluster.controller.forecasts import ARRIVALS, Forecast, Forecasts, JudgedForecast, Score
from cluster.controller.gauges import ControllerGauges
from cluster.controller.loop import ControllerSnapshot
from tests.cluster.fleet import system_json
from tests.cluster.test_cycle import World


def judged(forecasts: Forecasts, name: str, values: list[tuple[float, float]]) -> Score:
    """The score of forecasts beside what came."""
    for value, measured in values:
        forecasts.make("s", {name: value})
        forecasts.judge("s", {name: measured})
    return forecasts.scores("s")[name]


@pytest.mark.parametrize(
    ("name", "middle", "spread"),
    [(ARRIVALS, 40.0, 10.0), (ARRIVALS, 3.0, 2.0), ("ttft_ms", 200.0, 80.0), ("itl_ms", 9.0, 0.1)],
)
def test_nine_of_ten_intervals_hold_whatever_the_figure_is(
    name: str, middle: float, spread: float
) -> None:
    """Over many histories, as one of 200 holds more or less often by chance."""
    rng, held, in_all = Random(name), 0, 0
    for _ in range(20):
        values = [(middle, abs(rng.gauss(middle, spread))) for _ in range(200)]
        score = judged(Forecasts(), name, values)
        held, in_all = held + score.held, in_all + score.judged
    assert 0.89 < held / in_all < 0.93


def test_intervals_are_as_wide_as_forecasts_were_off() -> None:
    assert judged(Forecasts(), "itl_ms", [(10.0, 10.1)] * 30).half_width_ratio == pytest.approx(
        0.01, 0.1
    )
    wild = judged(Forecasts(), "itl_ms", [(10.0, 5.0), (10.0, 20.0)] * 30)
    assert (wild.held, wild.judged) == (51, 51)
    assert wild.half_width_ratio == pytest.approx(0.75)


def test_without_nine_forecasts_before_there_is_no_interval() -> None:
    forecasts = Forecasts()
    for _ in range(9):
        assert forecasts.make("s", {"itl_ms": 10.0}) == {"itl_ms": Forecast(10.0)}
        forecasts.judge("s", {"itl_ms": 11.0})
    assert forecasts.scores("s") == {}
    made = forecasts.make("s", {"itl_ms": 10.0})["itl_ms"]
    assert made.low == pytest.approx(9.09, 0.01)
    assert made.high == pytest.approx(11)


@pytest.mark.parametrize("measured", [{}, {"itl_ms": None}])
def test_what_is_not_known_is_not_judged(measured: dict[str, float | None]) -> None:
    forecasts = Forecasts()
    judged(forecasts, "itl_ms", [(10.0, 11.0)] * 12)
    forecasts.make("s", {"itl_ms": 10.0})
    forecasts.judge("s", measured)
    forecasts.judge("s", {"itl_ms": 99.0})
    assert forecasts.scores("s")["itl_ms"].judged == 3


def test_nothing_that_a_journal_says_breaks_them() -> None:
    far = JudgedForecast(1e300, True, False, 1e300, 1e300)
    forecasts = Forecasts([{"s": dict.fromkeys((ARRIVALS, "ttft_ms"), far)}] * 20)
    for name in (ARRIVALS, "ttft_ms"):
        made = forecasts.make("s", {name: 10.0})[name]
        assert made.low == pytest.approx(0)
        assert made.high is not None
        assert 1e299 < made.high < math.inf


def test_nothing_that_comes_breaks_them() -> None:
    for value, measured in ((0.0, 0.0), (0.0, 5.0), (1e9, 0.0), (1e-9, 1e9)):
        for name in (ARRIVALS, "ttft_ms"):
            assert judged(Forecasts(), name, [(value, measured)] * 20).held == 11


@pytest.mark.parametrize(
    "spread",
    [lambda past: 0.1 + 0.3 * past, lambda past: 0.1 if past < 0.5 else 0.4],
    ids=["grow", "grow at once"],
)
def test_nearly_as_many_hold_while_errors_grow(spread: Callable[[float], float]) -> None:
    """With k always 0.9 (n + 1) only 79 % and 77 % did."""
    rng, held, in_all = Random("errors"), 0, 0
    for _ in range(20):
        errors = [rng.gauss(0, spread(number / 200)) for number in range(200)]
        score = judged(Forecasts(), "ttft_ms", [(100.0, 100 * math.exp(e)) for e in errors])
        held, in_all = held + score.held, in_all + score.judged
    assert 0.86 < held / in_all < 0.93


def test_a_cycle_judges_what_the_one_before_expected(optimizer_url: str) -> None:
    world, rng = World(optimizer_url, system_json(rate=1000)), Random(1)
    world.period(0)
    made = [world.period(1000 + rng.randrange(60), itl_ms=rng.uniform(9, 11)) for _ in range(14)]
    cycles = [cycle.servers["s"] for cycle in made]
    for before, after in pairwise(cycles):
        assert after.scores.keys() <= before.forecasts.keys()
    last, before = cycles[-1], cycles[-2]
    assert {name: score.judged for name, score in last.scores.items()}.keys() == {
        ARRIVALS, "ttft_ms", "itl_ms",
    }  # fmt: skip
    said, came = before.forecasts[ARRIVALS], last.arrived_per_minute
    assert said.low is not None
    assert said.high is not None
    assert came is not None
    has_held = said.low <= came <= said.high
    assert last.scores[ARRIVALS].held - before.scores[ARRIVALS].held == has_held
    now = ControllerSnapshot(cycle=made[-1])
    samples = {
        sample.name: sample.value
        for metric in ControllerGauges(lambda: now).collect()
        for sample in metric.samples
        if sample.labels.get("figure") == ARRIVALS
    }
    assert samples["hearth_cluster_forecasts_judged"] == last.scores[ARRIVALS].judged
    assert 0 <= samples["hearth_cluster_forecasts_held_ratio"] <= 1
    soon = world.planner.cycle(world.actuator.replicas(), world.at_s + 0.5).servers["s"]
    assert (soon.scores, soon.forecasts) == (last.scores, {}), "nothing new was read"
