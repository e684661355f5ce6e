"""POST /analyze with a service curve: which method answers, how sure it is, what is refused."""

from typing import Any

import pytest

from optimizer.answer import Answer
from optimizer.candidates.replicas import SizingCache
from optimizer.errors import InvalidRequest
from optimizer.inferno_json import read
from optimizer.optimize import SolveOptions, optimize
from optimizer.questions.explain import explain
from optimizer.questions.prediction import analyze
from optimizer.questions.queries import Analyzed, AnalyzeQuery, SizeQuery, size
from optimizer.spec import PerfData
from optimizer.system import System
from tests.optimizer.curves import MEASURED
from tests.optimizer.support import SPEED, perf, server, system, target

SHAPE = {"maxBatchSize": 32, "avgInTokens": 64, "avgOutTokens": 96}


def analyzed(rate_per_s: float, curve: dict[str, Any] | None = None, **query: Any) -> Analyzed:
    body = {"serviceCurve": MEASURED | (curve or {}), **SHAPE, "arrivalRate": 60 * rate_per_s}
    return analyze(read(AnalyzeQuery, body | {"requests": 5000} | query), System())


def faults(body: dict[str, Any], model: Any = AnalyzeQuery) -> str:
    try:
        analyze(read(model, body), System())
    except InvalidRequest as refused:
        return str(refused)
    return ""


def test_chain_answers_where_it_holds_and_agrees_with_the_simulation() -> None:
    chain, simulation = analyzed(22), analyzed(22, method="simulation", requests=50_000)
    assert (chain["method"], simulation["method"]) == ("chain", "simulation")
    assert chain["itlAverage"] == pytest.approx(simulation["itlAverage"], rel=0.05)
    assert chain["ttftAverage"] == pytest.approx(simulation["ttftAverage"], rel=0.05)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"arrivalScv": 4}, "not Poisson"),
        ({"inTokensScv": 1}, "mixed"),
        ({"priorityShares": [0.5, 0.5]}, "priorities"),
        ({"maxBatchSize": 2}, "a batch of 2"),
        ({"serviceCurve": MEASURED | {"budgetTokens": 40}}, "steps' room"),
    ],
)
def test_simulation_answers_where_the_chain_does_not_hold(query: Any, why: str) -> None:
    found = analyzed(20, **{"requests": 1000} | query)
    assert found["method"] == "simulation"
    assert why in found["why"]
    chain = analyzed(20, **query, method="chain")
    assert chain["method"] == "chain"
    assert chain["warnings"]


def test_bursts_make_latencies_longer_and_higher_priorities_shorter() -> None:
    assert analyzed(24, arrivalScv=6)["ttftAverage"] > 1.5 * analyzed(24)["ttftAverage"]
    shares = analyzed(29, priorityShares=[0.2, 0.8], maxBatchSize=8, requests=20_000)
    first, second = shares["byPriority"]
    assert first["ttftAverage"] < second["ttftAverage"]
    assert analyzed(24)["byPriority"] == []


def test_interval_comes_from_the_errors_of_the_parameters_and_widens_near_capacity() -> None:
    without = MEASURED | {"decodeMs": [{"rows": 1, "ms": 0.8}, {"rows": 32, "ms": 8.6}]}
    assert analyzed(20, without)["interval"] is None
    low, high = analyzed(10), analyzed(28)
    for found in (low, high):
        assert found["interval"] is not None
        assert found["interval"]["itlAverage"]["low"] < found["itlAverage"]
        assert found["interval"]["itlAverage"]["high"] > found["itlAverage"]

    def width(found: Analyzed) -> float:
        assert found["interval"] is not None
        bounds = found["interval"]["ttftAverage"]
        return (bounds["high"] - bounds["low"]) / found["ttftAverage"]

    assert width(high) > 3 * width(low)
    unsure = analyzed(0.9 * high["maxRate"] / 60, {"speedError": 0.05})
    assert any("is uncertain by" in warning for warning in unsure["warnings"])


def test_errors_of_alpha_and_beta_give_an_interval_too() -> None:
    body = {**SPEED, **SHAPE, "arrivalRate": 60}
    assert analyze(read(AnalyzeQuery, body), System())["interval"] is None
    body["decodeParms"] = {"alpha": 10, "beta": 0.3, "alphaError": 0.5, "betaError": 0.0}
    found = analyze(read(AnalyzeQuery, body), System())
    assert found["interval"] is not None
    bounds = found["interval"]["itlAverage"]
    assert (bounds["high"] - bounds["low"]) / 2 == pytest.approx(2 * 0.5, rel=0.4)


def test_rows_beyond_those_measured_are_warned_of() -> None:
    few = {"decodeMs": MEASURED["decodeMs"][:2]}
    assert any("extrapolated" in warning for warning in analyzed(30, few)["warnings"])
    assert analyzed(2, few)["warnings"] == []


def test_equal_answers_allow_a_higher_rate_than_exponential_ones() -> None:
    tight = {"serviceCurve": MEASURED, **SHAPE, "maxBatchSize": 4, "slo-ttft": 60}
    equal, exponential = (
        size(read(SizeQuery, tight | {"outTokensScv": v}), System()) for v in (0, 1)
    )
    assert equal["maxRateFor"]["slo-ttft"] > 1.02 * exponential["maxRateFor"]["slo-ttft"]


@pytest.mark.parametrize(
    ("curve", "fault"),
    [
        ({"decodeMs": []}, "serviceCurve.decodeMs"),
        ({"decodeMs": [{"rows": 2, "ms": 2}, {"rows": 2, "ms": 3}]}, "decodeMs[1].rows=2 does not"),
        ({"decodeMs": [{"rows": 1, "ms": 2}, {"rows": 2, "ms": 1}]}, "decodeMs[1].ms=1 is below"),
        ({"decodeMs": [{"rows": 0, "ms": 2}]}, "decodeMs[0].rows"),
        ({"decodeMs": [{"rows": 1, "ms": 0}]}, "decodeMs[0].ms"),
        ({"promptTokenMs": -1}, "promptTokenMs"),
        ({"chunkTokens": 0}, "chunkTokens"),
        ({"speedError": 2}, "speedError"),
        ({"chunkToken": 5}, "did you mean chunkTokens?"),
    ],
)
def test_wrong_curves_are_refused_by_field_and_bound(curve: dict[str, Any], fault: str) -> None:
    body = {"serviceCurve": MEASURED | curve, **SHAPE, "arrivalRate": 60}
    assert fault in faults(body)


def test_what_only_a_curve_can_answer_is_refused_without_one() -> None:
    body = {**SPEED, **SHAPE, "arrivalRate": 60}
    for name, value in (
        ("method", "simulation"), ("arrivalScv", 2.0), ("inTokensScv", 1.0),
        ("outTokensScv", 0.0), ("priorityShares", [0.5, 0.5]),
    ):  # fmt: skip
        assert f"{name}: needs a serviceCurve" in faults(body | {name: value})


def test_simulation_that_would_take_too_long_is_refused_before_it_starts() -> None:
    chunked = MEASURED | {"chunkTokens": 1}
    body = {"serviceCurve": chunked, **SHAPE, "avgInTokens": 100_000, "arrivalRate": 1}
    assert "events to simulate, more than" in faults(body | {"method": "simulation"})


def test_flood_is_answered_with_what_departs() -> None:
    found = analyzed(1e9)
    assert found["saturated"]
    assert found["throughput"] == pytest.approx(found["maxRate"], rel=0.01)


def solved(one: System) -> Answer:
    return optimize(one, SolveOptions(SizingCache()))


def test_solves_explanations_and_idle_servers_use_the_curve() -> None:
    curved = perf("A", serviceCurve=MEASURED, maxBatchSize=32, atTokens=96)
    busy = server("busy", rate=60 * 50, avgInTokens=64, avgOutTokens=96)
    one = system(
        [busy, server("idle", rate=0, minNumReplicas=1, avgInTokens=64, avgOutTokens=96)],
        perfs=[curved],
        targets=target(slo_itl=4, slo_ttft=100),
    )
    allocated = solved(one).desired()
    chain = analyzed(25, method="chain")
    assert (allocated["busy"].accelerator, allocated["busy"].num_replicas) == ("A", 2)
    assert allocated["busy"].itl_average == pytest.approx(chain["itlAverage"], rel=1e-6)
    assert allocated["busy"].ttft_average == pytest.approx(chain["ttftAverage"], rel=1e-6)
    assert allocated["idle"].itl_average == pytest.approx(0.8)
    explanation: Any = explain(one, "busy", SizingCache())
    sized = size(
        read(SizeQuery, {"serviceCurve": MEASURED, **SHAPE, "slo-itl": 4, "slo-ttft": 100}),
        System(),
    )
    assert explanation["candidates"][0]["maxRateFor"] == pytest.approx(sized["maxRateFor"])


def test_curve_of_one_option_leaves_the_others_as_they_were() -> None:
    plain = solved(system([server()], perfs=[perf("A")])).desired()["s"]
    both = system([server()], perfs=[perf("A"), perf("B", serviceCurve=MEASURED)])
    kept = solved(system([server()], perfs=[perf("A"), perf("B")]))
    assert kept.desired()["s"] == plain
    explanation: Any = explain(both, "s", SizingCache())
    first, second = explanation["candidates"]
    assert first["itlAverage"] == plain.itl_average
    assert second["itlAverage"] != first["itlAverage"]


def test_performance_data_without_a_curve_shows_none() -> None:
    assert "serviceCurve" not in read(PerfData, perf("A")).dump()
    shown = read(PerfData, perf("A", serviceCurve=MEASURED)).dump()
    assert read(PerfData, shown).service_curve == read(PerfData, shown | {}).service_curve
    assert shown["serviceCurve"]["promptTokenMs"][0]["ms"] == 0.02
