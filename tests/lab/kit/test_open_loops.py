"""Poisson loads of a simulated server, predicted from closed loops: half a minute of computing."""

import pytest

from benchmarking.analysis.curve import load_point
from benchmarking.analysis.fit import fit_run
from benchmarking.analysis.predict import OptimizerApi, comparison_lines, predict, warning_lines
from benchmarking.analysis.search import Shape
from tests.benchmarking.simulated_loop import BENT, CONCURRENCIES, SERVER, saturated, simulated
from tests.benchmarking.simulated_server import SimulatedServer

SHAPE = Shape("m", 64, 96)


@pytest.mark.parametrize("server", [SERVER, BENT])
def test_open_loops_are_predicted_from_closed_ones(
    server: SimulatedServer, optimizer_url: str
) -> None:
    """The fit never saw a Poisson load; at 90 % of capacity it is within a few percent."""
    loads = [
        Shape("m", tokens, 96).at_concurrency(users, 20)
        for users in (*CONCURRENCIES, 64)
        for tokens in (32, 128)
    ]
    found = fit_run(simulated(loads, 1, server), "m", max_batch_size=32)
    perf = found.perf_data("m", "cpu")
    perf["serviceCurve"] |= {"chunkTokens": 256}
    if server.budget_tokens:
        perf["serviceCurve"] |= {"budgetTokens": server.budget_tokens}
    _, capacity_per_s = saturated(SHAPE, server)
    points = [
        load_point(*server.measure(SHAPE.at_rate(share * capacity_per_s, 400), seed=90))
        for share in (0.5, 0.8, 0.9)
    ]
    besides = predict(OptimizerApi(optimizer_url), perf, points)
    for beside in besides:
        # A floor hides prompts' work in short steps, which a sum a(n) + c p cannot have.
        assert abs(beside.itl_error) < (0.06 if server.floor_s else 0.05)
        assert abs(beside.ttft_error) < (0.10 if server.floor_s else 0.06)
        assert beside.prediction.itl_bounds_ms is not None
        assert beside.prediction.method == ("chain" if server is SERVER else "simulation")
    assert f", {besides[0].prediction.method} |" in "\n".join(comparison_lines(besides))
    assert not any("in service" in line for line in warning_lines(besides, found.validity))
