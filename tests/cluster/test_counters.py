"""What is read of a page of metrics."""

import dataclasses
import math
import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from cluster.config import MetricField
from cluster.controller.demand import (
    Demand,
    OfferedLoad,
    PastLoad,
    ServerTraffic,
    Traffic,
    between,
    traffic_of,
    with_door,
)
from cluster.engines import ENGINES, Counters, parse_counters
from cluster.errors import MetricsUnread
from cluster.replicas import Group, Replica, ReplicaState
from inference_api.core.record import GenerationRecord
from inference_api.core.status import ModelSnapshot
from inference_api.request import Caller
from inference_api.watch.metrics import ServerMetrics, ServerState
from tests.cluster.foreign_engine import PAGES, Engine

STATE = ServerState(32, queued=2, sessions=5, snapshot=ModelSnapshot(busy_rows=3))
RECORD = GenerationRecord(
    Caller("r"), "s", model="m", prompt_tokens=100, reused_tokens=0, completion_tokens=50,
    begun_s=0.0, queue_s=0.0, prefill_s=0.05, decode_s=0.5, ttft_s=0.25, e2e_s=0.8,
    finish_reason="stop", tokens_per_s=1.0, early_tokens_per_s=None, mean_batch_size=1.0,
)  # fmt: skip
OLD_VLLM = """
vllm:num_requests_running{model_name="m"} 4
vllm:num_requests_waiting{model_name="m"} 1
vllm:request_success_total{finished_reason="stop",model_name="m"} 7
vllm:request_success_total{finished_reason="length",model_name="m"} 2
vllm:prompt_tokens_total{model_name="m"} 900
vllm:generation_tokens_total{model_name="m"} 450
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.8
vllm:time_to_first_token_seconds_count{model_name="m"} 9
vllm:time_per_output_token_seconds_sum{model_name="m"} 4.41
vllm:time_per_output_token_seconds_count{model_name="m"} 441
vllm:e2e_request_latency_seconds_sum{model_name="m"} NaN
"""
LLAMA_SERVER = """
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 360
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 12
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 2.5
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 600
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 7.2
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 1.5
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 3
"""


def hearth_page(ended: int) -> str:
    metrics = ServerMetrics(["m"], lambda _: STATE)
    for _ in range(ended):
        metrics.ended(RECORD)
        metrics.token_gap("m", 0.01)
    return generate_latest(metrics.registry).decode()


def test_a_real_page_of_the_api_is_counted() -> None:
    assert parse_counters(hearth_page(2), 1.0) == Counters(
        1.0, ended=2, prompt_tokens=200, completion_tokens=100, ttft_s=0.5, ttft_count=2,
        itl_s=0.02, itl_count=2, running=3, waiting=2,
    )  # fmt: skip


def test_a_replica_that_has_answered_nobody_counts_nothing() -> None:
    assert parse_counters(hearth_page(0), 1.0) == Counters(1.0, running=3, waiting=2)


def test_vllm_is_counted_by_the_names_of_its_versions() -> None:
    found = parse_counters(OLD_VLLM, 0.0, ENGINES["vllm"])
    assert (found.ended, found.prompt_tokens, found.completion_tokens) == (9, 900, 450)
    assert (found.itl_s, found.itl_count, found.present) == (4.41, 441, 5)


@pytest.mark.parametrize("name", PAGES)
def test_other_engines_are_counted_by_their_names(name: str) -> None:
    engine = Engine(name, rows=4)
    engine.count(running=3, waiting=1, ended=2, prompt=200, completion=100)
    assert parse_counters(engine.page(), 1.0, ENGINES[name]) == Counters(
        1.0, ended=2, prompt_tokens=200, completion_tokens=100, ttft_s=0.04, ttft_count=2,
        itl_s=98 * 0.02, itl_count=98, running=3, waiting=1,
    )  # fmt: skip


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e16"])
@pytest.mark.parametrize("name", PAGES)
def test_a_number_that_counts_nothing_leaves_the_page_unread(name: str, value: str) -> None:
    """Any that is used. Taken for 0, the next page would have all requests since the start."""
    engine = Engine(name, rows=4)
    engine.count(running=3, waiting=1, ended=2, prompt=200, completion=100)
    for names in ENGINES[name].metrics.values():
        used = next(each for each in names if f"\n{each}{{" in engine.page())
        page = re.sub(rf"(?m)^({used}{{.*}}) .*$", rf"\1 {value}", engine.page(), count=1)
        with pytest.raises(MetricsUnread, match="not between"):
            parse_counters(page, 1.0, ENGINES[name])


def test_an_engine_that_counts_no_requests_has_them_by_its_tokens() -> None:
    engine = replace(ENGINES["llama-server"], answer_tokens=60)
    assert parse_counters(LLAMA_SERVER, 1.0, engine) == Counters(
        1.0, ended=10, prompt_tokens=360, completion_tokens=600, ttft_s=2.5, ttft_count=10,
        itl_s=7.2, itl_count=600, running=2, waiting=3,
    )  # fmt: skip


def test_a_page_of_another_engine_is_told_apart() -> None:
    with pytest.raises(MetricsUnread, match="none of sglang:num_running_reqs"):
        parse_counters(OLD_VLLM, 0.0, ENGINES["sglang"])


def test_every_field_that_a_table_has_is_one_of_the_counters() -> None:
    fields = {each.name for each in dataclasses.fields(Counters)} - {"at_s"}
    assert fields == set(get_args(MetricField))
    assert all(set(engine.metrics) <= fields for engine in ENGINES.values())


@pytest.mark.parametrize(
    "page",
    ["", "<html>", "inference_rows_busy 1", "inference_rows_busy{ 1", "inference_rows_busy x\n",
     "inference_rows_busy 1\ninference_queue_depth -3", "inference_rows_busy NaN",
     "inference_rows_busy 1e400\ninference_queue_depth 0"],
)  # fmt: skip
def test_a_page_of_something_else_is_told_apart(page: str) -> None:
    with pytest.raises(MetricsUnread):
        parse_counters(page, 0.0)


@given(st.text(alphabet='inference_rows_busy{}="0123456789.eE+-\n# ,\\', max_size=200))
def test_any_text_is_counted_or_refused(text: str) -> None:
    page = "inference_rows_busy" + text + "\ninference_queue_depth 0\n"
    try:
        found = parse_counters(page, 0.0)
    except MetricsUnread:
        return
    assert math.isfinite(found.present)


def test_a_queue_that_grows_has_arrived() -> None:
    before = Counters(0.0, ended=10, running=4)
    now = Counters(60.0, ended=110, running=32, waiting=50)
    assert between(before, now).arrived == 100 + 32 + 50 - 4
    assert between(before, now).per_minute == 178


def test_a_process_that_began_anew_counts_from_nothing() -> None:
    before = Counters(0.0, ended=1000, prompt_tokens=9000, completion_tokens=5000, running=30)
    now = Counters(60.0, ended=20, prompt_tokens=200, completion_tokens=100, running=5)
    assert between(before, now) == Traffic(
        60.0, 25, present=5, ended=20, prompt_tokens=200, completion_tokens=100
    )


GROUP = Group("s", "A", 32)
READY = [Replica(f"r{n}", GROUP, ReplicaState.READY, "http://x") for n in range(3)]


def test_a_new_replica_counts_from_the_last_cycle_and_the_first_reading_alone_says_nothing() -> (
    None
):
    now = {each.name: Counters(60.0, ended=5) for each in READY}
    assert traffic_of(READY, {}, now, None)["s"].unread == "r0: read once so far"
    assert traffic_of(READY, {}, now, 0.0)["s"].all.arrived == 15


def test_too_few_answers_are_none() -> None:
    before = {each.name: Counters(0.0) for each in READY}
    now: dict[str, Counters | MetricsUnread] = {
        each.name: MetricsUnread("broken") for each in READY
    }
    assert traffic_of(READY, before, now, 0.0)["s"].unread == "r0: broken"
    now["r0"] = now["r1"] = Counters(60.0, ended=6)
    two = traffic_of(READY, before, now, 0.0)["s"]
    assert (two.unread, two.all.arrived, two.all.ended) == ("", 18, 12)


def test_what_waits_at_the_door_is_dealt_by_what_came_through() -> None:
    one = traffic_of(READY, {}, {each.name: Counters(60.0, ended=5) for each in READY}, 0.0)
    more = with_door({"s": one["s"], "t": replace(one["s"])}, 40, 30)
    assert [each.all.arrived for each in more.values()] == [30, 30]
    assert [each.all.waiting for each in more.values()] == [20, 20]
    fewer = with_door(one, 0, -100)
    assert fewer["s"].all.arrived == 0


def test_what_waits_while_all_rows_have_long_answers_is_dealt_by_who_has_them() -> None:
    busy = {name: ServerTraffic(Traffic(5.0, present=rows)) for name, rows in (("s", 3), ("t", 1))}
    more = with_door(busy, 40, 20)
    assert [each.all.arrived for each in more.values()] == [15, 5]
    assert [each.all.waiting for each in more.values()] == [30, 10]
    assert with_door({"s": ServerTraffic(Traffic(5.0))}, 40, 20)["s"].all.arrived == 0


def test_what_waits_is_wanted_besides_what_comes_though_no_more_comes() -> None:
    """As where a queue is full: arrivals are then what is answered."""
    demand = Demand(OfferedLoad(60, 10, 10), scale_down_s=600)
    for at_s in (60.0, 120.0):
        demand.see(Traffic(60.0, arrived=100, ended=100, waiting=40), at_s)
    assert demand.load.per_minute == 140


def test_a_slow_rise_is_planned_for_as_long_ahead_as_a_start_takes() -> None:
    """Of 3 requests a period more in each, one period tells nothing that chance does not."""
    at_once, late = (Demand(OfferedLoad(0, 10, 10), scale_down_s=20) for _ in range(2))
    for number in range(1, 25):
        traffic = Traffic(5.0, arrived=10 + 3 * number, ended=10)
        at_once.see(traffic, 5.0 * number)
        late.see(traffic, 5.0 * number, start_s=40.0)
    now = 12 * (10 + 3 * 24)
    assert at_once.load.per_minute == now
    assert late.load.per_minute == now + 12 * 3 * 8


def test_demand_falls_no_sooner_than_another_replica_would_be_ready() -> None:
    demand = Demand(OfferedLoad(0, 10, 10), scale_down_s=20)
    demand.see(Traffic(5.0, arrived=100, ended=10), 5.0, start_s=60.0)
    for number in range(2, 14):
        demand.see(Traffic(5.0, arrived=10, ended=10), 5.0 * number, start_s=60.0)
        assert demand.load.per_minute == 1200
    demand.see(Traffic(5.0, arrived=10, ended=10), 70.0, start_s=60.0)
    assert demand.load.per_minute == 120


def test_a_load_of_before_counts_until_it_is_too_old() -> None:
    demand = Demand(OfferedLoad(600, 10, 10), 300, PastLoad(0.0, OfferedLoad(90, 11, 22)))
    assert demand.load == OfferedLoad(90, 11, 22)
    for at_s, highest in ((200.0, 90), (300.0, 90), (400.0, 30)):
        demand.see(Traffic(60.0, arrived=30), at_s)
        assert demand.load == OfferedLoad(highest, 11, 22)


@given(
    arrived=st.lists(st.integers(0, 300), min_size=1, max_size=60),
    start_s=st.floats(0, 1e9),
)
def test_a_rise_is_at_most_a_half_more_and_never_less(arrived: list[int], start_s: float) -> None:
    demand = Demand(OfferedLoad(0, 10, 10), scale_down_s=0)
    for number, count in enumerate(arrived):
        demand.see(Traffic(5.0, arrived=count, ended=1), 5.0 * number, start_s)
        highest = max(arrived[: number + 1])
        assert 12 * count <= demand.load.per_minute <= 18 * highest
