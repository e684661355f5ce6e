"""Sweeps, knee and the search for the largest rate, on curves that are known."""

from collections.abc import Generator
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil
from random import Random
from typing import Protocol, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarking.analysis.curve import LoadPoint, load_point, load_points, steady_window
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.knee import Saturation, knee, saturation
from benchmarking.analysis.search import Shape, search_max_rate, sweep_concurrency, sweep_rate
from benchmarking.load.schedule import due_times_s
from benchmarking.records import INTERRUPTED, RequestRecord, Workload
from tests.benchmarking.made_runs import made_record, made_run
from tests.benchmarking.simulated_server import SimulatedServer

SHAPE = Shape("m", 100, 11)
ALPHA_S, BETA_S, ROWS, TOKENS = 0.002, 0.0002, 32, 11

T = TypeVar("T")


class Server(Protocol):
    def measure(self, load: Workload) -> LoadPoint: ...


def drive(plan: Generator[Workload, LoadPoint, T], server: Server) -> T:
    load = next(plan)
    while True:
        try:
            load = plan.send(server.measure(load))
        except StopIteration as end:
            found: T = end.value
            return found


class MadeServer:
    """Serves up to ROWS at once, n of them with an ITL of ALPHA_S + BETA_S n."""

    def __init__(self) -> None:
        self.loads: list[Workload] = []

    def measure(self, load: Workload) -> LoadPoint:
        self.loads.append(load)
        capacity = ROWS / self.e2e_s(ROWS)
        if load.concurrency is not None:
            in_flight = float(load.concurrency)
            served = min(in_flight, ROWS) / self.e2e_s(min(in_flight, ROWS))
            return self.point(load, served, served, in_flight)
        assert load.qps is not None
        served = min(load.qps, capacity)
        return self.point(load, load.qps, served, ROWS * (served / capacity) ** 2)

    def e2e_s(self, in_service: float) -> float:
        return TOKENS * (ALPHA_S + BETA_S * in_service)

    def point(self, load: Workload, offered: float, served: float, in_flight: float) -> LoadPoint:
        itl_s = ALPHA_S + BETA_S * min(in_flight, ROWS)
        records = [made_record(due_s=i / 10, itl_s=itl_s) for i in range(20)]
        run = made_run([records], [load])
        made = load_points(run)[0]
        return replace(
            made,
            offered_per_s=offered,
            throughput_per_s=served,
            tokens_per_s=served * TOKENS,
            in_flight=in_flight,
        )


def test_concurrency_doubles_until_it_brings_no_more_tokens() -> None:
    server = MadeServer()
    drive(sweep_concurrency(SHAPE, 256, requests_each=3), server)
    assert [load.concurrency for load in server.loads] == [1, 2, 4, 8, 16, 32, 64]
    assert server.loads[2].num_requests == 12


def test_concurrency_ends_at_the_bound() -> None:
    server = MadeServer()
    drive(sweep_concurrency(SHAPE, 9, requests_each=1), server)
    assert [load.concurrency for load in server.loads] == [1, 2, 4, 8]


def test_a_server_that_is_full_at_once_still_gives_rows_enough_for_a_fit() -> None:
    """Any server's tokens/s may stop growing with two users: the sweep's purpose is a fit."""
    server = SharedServer()
    end = drive(sweep_concurrency(SHAPE, 256, requests_each=1), server)
    assert [load.concurrency for load in server.loads] == [1, 2, 4, 8]
    assert end.saturated is not None


class SharedServer(MadeServer):
    """Gives each of n users the nth part of a speed."""

    def e2e_s(self, in_service: float) -> float:
        return TOKENS * ALPHA_S * in_service


class StepServer:
    """A simulated server whose loads are kept."""

    def __init__(self) -> None:
        self.loads: list[Workload] = []

    def measure(self, load: Workload) -> LoadPoint:
        self.loads.append(load)
        return load_point(*SimulatedServer(rows=8).measure(load, seed=len(self.loads)))


def test_rates_are_shares_of_the_closed_loop_and_end_in_saturation() -> None:
    server = StepServer()
    end = drive(sweep_rate(Shape("m", 64, 64), 16, [0.1, 0.5, 0.9, 1.5, 2], duration_s=10), server)
    closed = StepServer().measure(server.loads[0]).throughput_per_s
    rates = [load.qps for load in server.loads[1:] if load.qps is not None]
    assert rates == pytest.approx([0.1 * closed, 0.5 * closed, 0.9 * closed, 1.5 * closed])
    assert all(load.qps_distribution == "exponential" for load in server.loads[1:])
    assert server.loads[2].num_requests == round(0.5 * closed * 10)
    assert end.saturated is not None
    assert end.saturated.load == server.loads[-1]
    assert [point.load for point in end.too_short] == server.loads[1:2]


@given(start_qps=st.floats(100, 1000), limit_ms=st.floats(2.1, 8.3))
def test_the_search_brackets_the_rate_at_which_itl_reaches_its_level(
    start_qps: float, limit_ms: float
) -> None:
    server = MadeServer()

    def is_met(point: LoadPoint) -> bool:
        return point.itl is not None and point.itl.mean.value <= limit_ms

    met, missed = drive(search_max_rate(SHAPE, is_met, start_qps, duration_s=60), server)
    capacity = ROWS / server.e2e_s(ROWS)
    true_qps = capacity * ((limit_ms / 1000 - ALPHA_S) / BETA_S / ROWS) ** 0.5
    assert met is not None
    assert missed is not None
    assert met.load.qps is not None
    assert missed.load.qps is not None
    assert met.load.qps <= true_qps * (1 + 1e-6)
    assert true_qps <= missed.load.qps * (1 + 1e-6)
    assert missed.load.qps <= 1.05 * met.load.qps


def test_a_level_that_nothing_meets_or_everything() -> None:
    server = MadeServer()
    met, _ = drive(search_max_rate(SHAPE, lambda _: False, 50, duration_s=1), server)
    assert met is None
    assert [load.qps for load in server.loads] == [50, 25, 12.5]  # then too few would arrive
    _, missed = drive(search_max_rate(SHAPE, lambda _: True, 10, duration_s=1), MadeServer())
    assert missed is None


def test_the_knee_is_where_throughput_over_latency_is_greatest() -> None:
    """n / T(n) over T(n) = c (A + B n) is greatest at n = A / B, here 10."""
    server = MadeServer()
    points = [server.measure(SHAPE.at_concurrency(n, 1)) for n in (1, 5, 10, 20, 32)]
    points = [taking(point, server.e2e_s(point.in_flight)) for point in points]
    found = knee(points)
    assert found is not None
    assert found.load.concurrency == 10
    assert knee([]) is None


def taking(point: LoadPoint, e2e_s: float) -> LoadPoint:
    assert point.e2e is not None
    return replace(point, e2e=replace(point.e2e, mean=replace(point.e2e.mean, value=e2e_s)))


def queued(places: int, utilisation: float, num_requests: int, rng: Random) -> list[RequestRecord]:
    """What Poisson arrivals meet at `places` first come, first served, after a second of warm-up.

    Answers take an exponential time of mean 1 s (M/M/c).
    """
    qps = utilisation * places
    num_warmup = ceil(qps)
    free_s = [0.0] * places  # when each place is given back; a heap
    records = []
    for due_s in due_times_s(num_warmup + num_requests, qps, "exponential", rng):
        end_s = max(due_s, heappop(free_s)) + rng.expovariate(1)
        heappush(free_s, end_s)
        records.append(made_record(due_s=due_s, ttft_s=end_s - due_s, tokens=1))
    return records[num_warmup:]


def share_of(verdict: Saturation, rows: int, *queue: float) -> float:
    places, utilisation, num_requests = queue
    found = [
        saturation(queued(int(places), utilisation, int(num_requests), Random(f"{queue} {row}")))
        for row in range(rows)
    ]
    return found.count(verdict) / rows


@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize(("num_requests", "rows"), [(9, 400), (30, 400), (100, 400), (300, 150)])
def test_a_server_that_keeps_up_is_hardly_ever_called_saturated(
    places: int, num_requests: int, rows: int
) -> None:
    assert share_of(Saturation.SATURATED, rows, places, 0.9, num_requests) <= 0.02


@pytest.mark.parametrize("places", [1, 4])
def test_a_server_offered_half_more_than_it_can_answer_is_found_by_enough_requests(
    places: int,
) -> None:
    assert share_of(Saturation.SATURATED, 50, places, 1.5, 100) >= 0.6
    assert share_of(Saturation.SATURATED, 50, places, 1.5, 300) >= 0.95
    assert share_of(Saturation.SATURATED, 20, places, 10, 300) == 1  # all the row in one backlog


def test_a_row_of_few_requests_or_of_few_latencies_is_too_short_to_tell() -> None:
    assert share_of(Saturation.TOO_SHORT, 20, 1, 0.5, 30) == 1
    assert share_of(Saturation.TOO_SHORT, 20, 128, 0.9, 100) == 1  # over before one is answered
    assert share_of(Saturation.KEEPS_UP, 20, 1, 0.5, 100) == 1


def test_a_server_that_refuses_what_is_too_much_is_saturated() -> None:
    def refusing(number: int) -> Saturation:
        return saturation(
            [made_record(due_s=i, error="503" if i < number else None) for i in range(100)]
        )

    assert refusing(24) is Saturation.SATURATED
    assert refusing(20) is Saturation.KEEPS_UP
    assert refusing(100) is Saturation.SATURATED


def test_rates_hold_while_the_load_was_held() -> None:
    """Ten requests a second for two seconds, each 0.2 s long; the drain does not count."""
    records = [made_record(due_s=i / 10, ttft_s=0.1, itl_s=0.01, tokens=11) for i in range(21)]
    (point,) = load_points(made_run([records], [SHAPE.at_rate(10, 2)]))
    assert (point.from_s, point.to_s) == (0, 2.0)
    assert point.offered_per_s == pytest.approx(10)
    assert point.throughput_per_s == pytest.approx(9, abs=0.51)  # the first ends at 0.2 s
    assert point.in_flight == pytest.approx(1.95)
    assert point.tokens_per_s == pytest.approx(100, abs=5)
    assert point.error_share == 0
    assert point.ttft is not None
    assert point.ttft.percentile(99) == pytest.approx(100)
    assert point.goodput(Slo(ttft_ms=150)).requests_per_s == pytest.approx(10)
    assert point.goodput(Slo(ttft_ms=50)).attainment == 0


def test_requests_all_due_at_once_are_measured_over_the_whole_row() -> None:
    run = made_run([[made_record() for _ in range(4)]])
    assert steady_window(run.rows[0], run.records) == pytest.approx((0.0, 0.2))
    (point,) = load_points(run)
    assert point.offered_per_s == pytest.approx(20)


def test_a_row_of_failures_has_no_latency_and_no_throughput() -> None:
    run = made_run([[made_record(error="503"), made_record(due_s=1, error="503")]])
    point = load_point(run.rows[0], run.records)
    assert (point.ttft, point.itl, point.e2e) == (None, None, None)
    assert (point.error_share, point.throughput_per_s) == (1.0, 0.0)
    assert knee([point]) is None


def test_a_row_that_never_began_is_no_point() -> None:
    run = made_run([[made_record()]])
    assert len(load_points(run)) == 1
    assert load_points(replace(run, records=())) == []
    assert load_points(made_run([[made_record(error=INTERRUPTED)]])) == []
