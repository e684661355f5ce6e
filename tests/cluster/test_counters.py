"""What is read of a page of metrics."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from cluster.controller.counters import Counters, parse_counters
from cluster.controller.demand import Demand, OfferedLoad
from cluster.controller.loads import Traffic, between, traffic_of, with_door
from cluster.errors import MetricsUnread
from cluster.replicas import Group, Replica, ReplicaState
from inference_api.core.record import EndedGeneration, GenerationRecord
from inference_api.request import Caller
from inference_api.watch.metrics import ServerMetrics, ServerState

STATE = ServerState(
    busy_rows=3, user_rows=32, queued=2, sessions=5, steps=0, prefilled_tokens=0, reused_tokens=0,
    generated_tokens=0, model_s=0.0, loop_s=0.0,
)  # fmt: skip
RECORD = GenerationRecord(
    model="m", prompt_tokens=100, reused_tokens=0, completion_tokens=50, begun_s=0.0, queue_s=0.0,
    prefill_s=0.05, decode_s=0.5, ttft_s=0.25, e2e_s=0.8, finish_reason="stop", tokens_per_s=1.0,
    early_tokens_per_s=None, mean_batch_size=1.0,
)  # fmt: skip
VLLM = """
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


def hearth_page(ended: int) -> str:
    metrics = ServerMetrics(["m"], lambda _: STATE)
    gone = EndedGeneration(RECORD, Caller("r"), "s", None)
    for _ in range(ended):
        metrics.ended(gone)
        metrics.token_gap("m", 0.01)
    return generate_latest(metrics.registry).decode()


def test_a_real_page_of_the_api_is_counted() -> None:
    assert parse_counters(hearth_page(2), 1.0) == Counters(
        1.0, ended=2, prompt_tokens=200, completion_tokens=100, ttft_s=0.5, ttft_count=2,
        itl_s=0.02, itl_count=2, running=3, waiting=2,
    )  # fmt: skip


def test_a_replica_that_has_answered_nobody_counts_nothing() -> None:
    assert parse_counters(hearth_page(0), 1.0) == Counters(1.0, running=3, waiting=2)


def test_other_engines_are_counted_by_the_names_of_vllm() -> None:
    found = parse_counters(VLLM, 0.0)
    assert (found.ended, found.prompt_tokens, found.completion_tokens) == (9, 900, 450)
    assert (found.itl_s, found.itl_count, found.present) == (4.41, 441, 5)


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
    assert between(before, now) == Traffic(60.0, 25, 20, 200, 100)


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


def test_what_waits_is_wanted_besides_what_comes_though_no_more_comes() -> None:
    """As where a queue is full: arrivals are then what is answered."""
    demand = Demand(OfferedLoad(60, 10, 10), scale_down_s=600)
    for at_s in (60.0, 120.0):
        demand.see(Traffic(60.0, arrived=100, ended=100, waiting=40), at_s)
    assert demand.load.per_minute == 140
