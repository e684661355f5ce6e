"""How far the optimizer's model carries for a continuous-batching server, without any noise.

`python -m tests.benchmarking.simulated_loop` prints the table of docs/benchmarking.md: a simulated
server is swept, fitted, asked about and checked. The numbers do not depend on the machine.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarking.analysis.curve import load_point, load_points
from benchmarking.analysis.fit import Fit, fit_run
from benchmarking.analysis.search import Shape
from benchmarking.records import Run, Workload
from optimizer.questions.prediction import analyze
from optimizer.questions.queries import AnalyzeQuery
from optimizer.system import System
from tests.benchmarking.made_runs import made_run
from tests.benchmarking.simulated_server import SimulatedServer

SERVER = SimulatedServer()
BUDGETED = replace(SERVER, budget_tokens=45)  # as ITL_BUDGET=1.4 makes it of 32 rows
# About as the embedded model: up to 4 rows a step takes as long as reading the weights.
BENT = replace(BUDGETED, step_s=0.0002, row_s=0.0002, prompt_token_s=0.0001, floor_s=0.0008)
CHECK_S = 2400.0
SWEEP_S, SWEEP_SHARES = 10.0, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
CONCURRENCIES = (1, 2, 4, 8, 16, 24, 32)


def simulated(loads: Sequence[Workload], seed: int, server: SimulatedServer = SERVER) -> Run:
    rows = [server.measure(load, seed + i)[1] for i, load in enumerate(loads)]
    return made_run(rows, loads)


def saturated(shape: Shape, server: SimulatedServer) -> tuple[Workload, float]:
    """The closed loop of more users than rows, and the requests per second that they get."""
    load = shape.at_concurrency(2 * server.rows, 8)
    (point,) = load_points(simulated([load], 1, server))
    return load, point.throughput_per_s


def fitted_in_open_loop(
    shape: Shape,
    factors: tuple[float, ...] = (0.75, 1.0, 1.25),
    server: SimulatedServer = SERVER,
) -> Fit:
    """Lines through Poisson loads."""
    saturating, capacity_per_s = saturated(shape, server)
    swept = [
        replace(shape, input_tokens=round(factor * shape.input_tokens)).at_rate(
            share * capacity_per_s, SWEEP_S
        )
        for factor in factors
        for share in SWEEP_SHARES
    ]
    loads = [saturating, *swept]
    return fit_run(simulated(loads, 1, server), shape.model)


def fitted_in_closed_loop(shape: Shape) -> Fit:
    loads = [shape.at_concurrency(n, 20) for n in (*CONCURRENCIES, 2 * SERVER.rows)]
    return fit_run(simulated(loads, seed=1), shape.model)


def checked(shape: Shape, fit: Fit, share: float, server: SimulatedServer = SERVER) -> str:
    """Predicted beside simulated at a share of the capacity."""
    perf = fit.perf_data(shape.model, "simulated")
    replica = {
        "decodeParms": perf["decodeParms"],
        "prefillParms": perf["prefillParms"],
        "maxBatchSize": perf["maxBatchSize"],
        "avgInTokens": shape.input_tokens,
        "avgOutTokens": shape.output_tokens,
    }
    _, capacity_per_s = saturated(shape, server)
    load = shape.at_rate(share * capacity_per_s, CHECK_S)
    point = load_point(*server.measure(load, seed=90))
    query = AnalyzeQuery.model_validate(replica | {"arrivalRate": 60 * point.offered_per_s})
    said = analyze(query, System())
    assert point.ttft is not None
    assert point.itl is not None
    cells = [f"{share}"]
    for measured, predicted in (
        (point.ttft.mean.value, said["ttftAverage"]),
        (point.itl.mean.value, said["itlAverage"]),
    ):
        cells += [f"{measured:.2f}", f"{predicted:.2f}", f"{predicted / measured - 1:+.0%}"]
    return " | ".join(cells)


def main() -> None:
    print("| prompt + answer, fitted by | load | TTFT | model | error | ITL | model | error |")
    print("|---|---|---|---|---|---|---|---|")
    square, double, long = Shape("m", 64, 64), Shape("m", 128, 128), Shape("m", 256, 64)
    benched = Shape("m", 64, 96)
    for name, shape, fit, server in (
        ("64 + 64, rates", square, fitted_in_open_loop(square), SERVER),
        ("128 + 128, rates", double, fitted_in_open_loop(double), SERVER),
        ("256 + 64, rates", long, fitted_in_open_loop(long), SERVER),
        (
            "64 + 64, rates, prompts of 16 to 256",
            square,
            fitted_in_open_loop(square, (0.25, 1.0, 4.0)),
            SERVER,
        ),
        ("64 + 64, users", square, fitted_in_closed_loop(square), SERVER),
        (
            "64 + 64, rates, prompts within a budget",
            square,
            fitted_in_open_loop(square, server=BUDGETED),
            BUDGETED,
        ),
        (
            "64 + 96, rates, budget, steps with a floor",
            benched,
            fitted_in_open_loop(benched, server=BENT),
            BENT,
        ),
    ):
        for share in (0.5, 0.8):
            print(f"| {name} | {checked(shape, fit, share, server)} |")


if __name__ == "__main__":
    main()
