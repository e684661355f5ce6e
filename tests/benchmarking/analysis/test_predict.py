"""Sweep, fit, post, predict and measure: the whole loop over a simulated server.

Its clock is simulated, so what is left is the error of the model, the fit and a finite sample.
"""

from statistics import fmean

import pytest
import requests

from benchmarking.analysis.curve import LoadPoint, load_point, load_points
from benchmarking.analysis.fit import Fit
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.latency import TTFT
from benchmarking.analysis.predict import OptimizerApi, is_comparable, predict, prediction_of
from benchmarking.analysis.search import Shape, search_max_rate
from benchmarking.errors import OptimizerUnusable
from benchmarking.records import Workload
from lab.benches.loop.figures import MAX_ITL_ERROR, MAX_TTFT_ERROR
from lab.kit.questions import max_rate, request_shape
from lab.kit.servers import TIMEOUT_S
from tests.benchmarking.analysis.test_search import drive
from tests.benchmarking.made_runs import made_record, made_run
from tests.benchmarking.simulated_loop import BENT, SERVER, fitted_in_open_loop, saturated
from tests.benchmarking.simulated_server import SimulatedServer

SHAPE = Shape("m", 64, 64)


@pytest.fixture(scope="module")
def fitted() -> Fit:
    return fitted_in_open_loop(SHAPE)


def test_the_fit_finds_the_rows_of_the_server(fitted: Fit) -> None:
    assert (fitted.max_batch_size, fitted.batch_bound) == (32, "rows")
    assert fitted.at_tokens == 64
    assert fitted.decode.r_squared > 0.95


@pytest.mark.parametrize(
    ("shape", "server", "itl_error", "ttft_error"),
    [(SHAPE, SERVER, 0.05, 0.10), (Shape("m", 64, 96), BENT, MAX_ITL_ERROR, MAX_TTFT_ERROR)],
    ids=["as the model assumes", "as the embedded model is served"],
)
def test_predictions_at_half_and_four_fifths_of_capacity(
    shape: Shape, server: SimulatedServer, itl_error: float, ttft_error: float, optimizer_url: str
) -> None:
    optimizer = OptimizerApi(optimizer_url)
    perf = fitted_in_open_loop(shape, server=server).perf_data("m", "cpu")
    _, capacity_per_s = saturated(shape, server)
    points = [
        load_point(*server.measure(shape.at_rate(share * capacity_per_s, 200), seed=90))
        for share in (0.5, 0.8)
    ]
    for beside in predict(optimizer, perf, points):
        assert abs(beside.itl_error) < itl_error
        assert abs(beside.ttft_error) < ttft_error


def test_the_maximum_rate_within_a_level(fitted: Fit, optimizer_url: str) -> None:
    optimizer = OptimizerApi(optimizer_url)
    slo = Slo(itl_ms=fitted.decode.at(16))
    predicted = max_rate(optimizer, fitted.perf_data("m", "cpu"), (64, 64), slo)
    assert predicted is not None

    def keeps_level(point: LoadPoint) -> bool:
        return (
            point.itl is not None and slo.itl_ms is not None and point.itl.mean.value <= slo.itl_ms
        )

    class Server:
        def measure(self, load: Workload) -> LoadPoint:
            return load_point(*SimulatedServer().measure(load, seed=70))

    met, _ = drive(search_max_rate(SHAPE, keeps_level, 10, duration_s=60), Server())
    assert met is not None
    assert predicted.rate_per_s == pytest.approx(met.offered_per_s, rel=0.10)


def test_a_level_below_what_an_idle_server_does_has_no_rate(
    fitted: Fit, optimizer_url: str
) -> None:
    slo = Slo(itl_ms=fitted.decode.at(0) / 2)
    perf = fitted.perf_data("m", "cpu")
    assert max_rate(OptimizerApi(optimizer_url), perf, (64, 64), slo) is None


def test_posted_data_and_the_same_parameters_give_the_same_answer(
    fitted: Fit, optimizer_url: str
) -> None:
    perf = fitted.perf_data("m", "cpu")
    optimizer = OptimizerApi(optimizer_url)
    optimizer.set_perf(perf)
    by_parameters = optimizer.analyze(perf, (64, 64), 20.0)
    named = {"model": "m", "acc": "cpu", "avgInTokens": 64, "avgOutTokens": 64}
    said = requests.post(
        f"{optimizer_url}/analyze", json={**named, "arrivalRate": 1200}, timeout=TIMEOUT_S
    )
    answer = said.json()
    assert prediction_of(answer, answer["maxRate"]) == by_parameters
    assert by_parameters.rate_per_s == pytest.approx(20.0)
    assert by_parameters.max_rate_per_s > 20.0


def test_rows_of_the_same_load_are_parts_of_one(fitted: Fit, optimizer_url: str) -> None:
    load = SHAPE.at_rate(10, 20)
    parts = [load_point(*SERVER.measure(load, seed)) for seed in (1, 2, 3)]
    other = load_point(*SERVER.measure(SHAPE.at_rate(20, 20), 4))
    found = predict(OptimizerApi(optimizer_url), fitted.perf_data("m", "cpu"), [*parts, other])
    assert [beside.load.qps for beside in found] == [10, 20]
    ttfts_ms = [ttft for part in parts for ttft in TTFT.values(part.measured)]
    assert found[0].ttft.value == pytest.approx(fmean(ttfts_ms))
    held_s = [part.to_s - part.from_s for part in parts]
    rate_per_s = sum(part.offered_per_s * s for part, s in zip(parts, held_s, strict=True))
    assert found[0].prediction.rate_per_s == pytest.approx(rate_per_s / sum(held_s))


def test_only_poisson_arrivals_are_compared() -> None:
    rows = [[made_record(due_s=i / 10) for i in range(5)] for _ in range(3)]
    poisson = SHAPE.at_rate(10, 1)
    constant = Workload("m", 64, 64, 10, qps=10)
    points = load_points(made_run(rows, [poisson, constant, SHAPE.at_concurrency(2, 5)]))
    assert [is_comparable(point) for point in points] == [True, False, False]
    assert request_shape(points[0].measured) == (100, 11)


def test_an_optimizer_that_refuses_or_is_not_there_is_named(
    fitted: Fit, optimizer_url: str
) -> None:
    perf = fitted.perf_data("m", "cpu")
    with pytest.raises(OptimizerUnusable, match="400"):
        OptimizerApi(optimizer_url).analyze(perf, (64, 64), 0.0)
    with pytest.raises(OptimizerUnusable, match="OPTIMIZER_STATEFUL"):
        OptimizerApi(optimizer_url + "/elsewhere").set_perf(perf)
    with pytest.raises(OptimizerUnusable, match=r"127\.0\.0\.1:9"):
        OptimizerApi("http://127.0.0.1:9").set_perf(perf)
