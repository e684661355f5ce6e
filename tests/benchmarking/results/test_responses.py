"""Every documented formula, on times written by hand."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from benchmarking.load.usage import server_usage
from benchmarking.records import RequestError, RequestRecord, RowRecord, ServerUsage, Workload
from benchmarking.results.responses import client_times, responses
from benchmarking.results.summary import results, statistics, summarise

STARTED_AT = datetime(2026, 1, 2, 23, 59, 50, 250_000, UTC)
USAGE = ServerUsage(103, 5, 108, 0.4, 1.0, 6.0, 108.0, 7.0, 4, 0.5)
# Three events with 2, 1 and 2 tokens: gaps 0.5, 0.2 and 0.3 s, and 0.1 s to the end of the stream.
RECORD = RequestRecord(
    row=0,
    index=0,
    model="m",
    prompt_name="default",
    scheduled_s=9.5,
    sent_s=10.0,
    end_s=11.1,
    chunk_s=(10.5, 10.7, 11.0),
    chunk_tokens=(2, 1, 2),
    prompt_tokens=100,
    completion_tokens=4,
    usage=USAGE,
    status=200,
    finish_reason="length",
)
FAILED = replace(
    RECORD, index=1, end_s=10.2, chunk_s=(), usage=None, error=RequestError("503", "full")
)

KEYS = """error_code error_msg prompt_name start_time end_time server_number_input_tokens
server_number_output_tokens server_number_total_tokens server_ttft_s server_switching_time
server_end_to_end_latency_s server_output_token_per_s_per_request
server_total_tokens_per_s_per_request server_output_token_after_first_per_s_first_ten_per_request
batch_size_used acceptance_rate number_input_tokens number_output_tokens number_total_tokens
client_ttft_s client_end_to_end_latency_s client_output_token_per_s_per_request
client_total_tokens_per_s_per_request client_inter_token_latencies_s
client_mean_inter_token_latency_s"""


def test_a_response_has_the_documented_keys_in_their_order() -> None:
    (response,) = responses([RECORD], STARTED_AT)
    assert list(response) == KEYS.split()


def test_the_clients_times_follow_the_documented_formulas() -> None:
    (response,) = responses([RECORD], STARTED_AT)
    tpot_s = (0.2 + 0.3) / (1 + 2)
    ttft_s = 0.5 - (2 - 1) * tpot_s
    assert response["client_ttft_s"] == pytest.approx(ttft_s)
    assert response["client_end_to_end_latency_s"] == pytest.approx(1.1)
    assert response["client_output_token_per_s_per_request"] == pytest.approx(4 / (1.1 - ttft_s))
    assert response["client_total_tokens_per_s_per_request"] == pytest.approx((100 + 4) / 1.1)
    assert response["client_inter_token_latencies_s"] == pytest.approx([0.5, 0.2, 0.3])
    assert response["client_mean_inter_token_latency_s"] == pytest.approx(0.25)
    assert (response["number_input_tokens"], response["number_output_tokens"]) == (100, 5)
    assert response["number_total_tokens"] == 105
    assert (response["start_time"], response["end_time"]) == ("00:00:00.250000", "00:00:01.350000")


def test_the_servers_figures_are_taken_as_they_are() -> None:
    (response,) = responses([RECORD], STARTED_AT)
    of_server = {name: value for name, value in response.items() if name.startswith("server_")}
    assert of_server == {
        "server_number_input_tokens": 103,
        "server_number_output_tokens": 5,
        "server_number_total_tokens": 108,
        "server_ttft_s": 0.4,
        "server_switching_time": None,
        "server_end_to_end_latency_s": 1.0,
        "server_output_token_per_s_per_request": 6.0,
        "server_total_tokens_per_s_per_request": 108.0,
        "server_output_token_after_first_per_s_first_ten_per_request": 7.0,
    }
    assert (response["batch_size_used"], response["acceptance_rate"]) == (4, 0.5)


def test_a_single_event_has_no_time_after_the_first_token() -> None:
    times = client_times(replace(RECORD, chunk_s=(10.5,), chunk_tokens=(5,)))
    assert times.ttft_s == times.end_to_end_s == pytest.approx(1.1)
    assert times.output_tokens_per_s == pytest.approx(5 / 1.1)
    assert times.mean_inter_token_s == pytest.approx(0.5)


def test_an_answer_without_text_has_no_rates() -> None:
    times = client_times(replace(RECORD, chunk_s=(), chunk_tokens=()))
    assert (times.ttft_s, times.end_to_end_s) == pytest.approx((1.1, 1.1))
    assert (times.output_tokens_per_s, times.mean_inter_token_s) == (None, None)


def test_a_first_event_of_many_tokens_began_after_the_request() -> None:
    """By the documented formula alone it would be 0.5 - 4 * 0.25 s, half a second before it."""
    times = client_times(replace(RECORD, chunk_tokens=(5, 1, 1)))
    assert times.ttft_s == pytest.approx(0.5 / 5)


def test_tokens_that_were_hidden_are_in_no_rate() -> None:
    usage = replace(USAGE, completion_tokens=100, reasoning_tokens=95)
    (response,) = responses([replace(RECORD, usage=usage)], STARTED_AT)
    (as_usual,) = responses([RECORD], STARTED_AT)
    assert response == as_usual | {"server_number_output_tokens": 100}


def test_without_a_servers_count_the_clients_counts() -> None:
    (response,) = responses([replace(RECORD, usage=None)], STARTED_AT)
    assert response["number_output_tokens"] == 4
    assert response["server_ttft_s"] is None


def test_a_failure_says_what_and_when_and_nothing_else() -> None:
    (response,) = responses([FAILED], STARTED_AT)
    assert response == {
        "error_code": "503",
        "error_msg": "full",
        "prompt_name": "default",
        "start_time": "00:00:00.250000",
        "end_time": "00:00:00.450000",
    }


def test_responses_come_in_the_order_in_which_they_ended() -> None:
    assert [r["error_code"] for r in responses([RECORD, FAILED], STARTED_AT)] == ["503", None]


def test_a_switch_is_the_servers_word_or_else_an_estimate_on_the_first_request() -> None:
    said = replace(RECORD, usage=replace(USAGE, switching_time_s=0.0))
    assert responses([said], STARTED_AT)[0]["server_switching_time"] == 0.0
    slow = replace(RECORD, usage=replace(USAGE, ttft_s=2.4))
    later = [replace(RECORD, index=i, sent_s=10.0 + i, end_s=11.1 + i) for i in range(1, 4)]
    found = [r["server_switching_time"] for r in responses([*later, slow], STARTED_AT)]
    assert found == [pytest.approx(2.0), None, None, None]


def test_a_summary_has_the_documented_158_keys() -> None:
    load = Workload("m", 100, 5, 2, concurrency=2)
    row = RowRecord(load, "stem", 10.0, 12.0, 1.7e9)
    summary = summarise(row, responses([RECORD, RECORD], STARTED_AT), {})
    assert len(summary) == 158
    assert list(summary)[:3] == ["name", "model", "num_concurrent_requests"]
    assert list(summary)[-4:] == ["num_input_tokens", "num_output_tokens", "model_idx", "timestamp"]
    assert summary["name"] == "stem_summary"
    assert summary["results_client_ttft_s_quantiles_p50"] == 0.3333
    assert summary["results_server_number_input_tokens_min"] == 103


def test_an_open_loop_is_summarised_by_its_rate_and_its_sampling() -> None:
    load = Workload("m", 100, 5, 2, qps=2.5, qps_distribution="uniform")
    row = RowRecord(load, "stem", 10.0, 12.0, 1.7e9)
    summary = summarise(row, responses([RECORD], STARTED_AT), {"temperature": 0})
    assert (summary["qps"], summary["qps_distribution"]) == (2.5, "uniform")
    assert "num_concurrent_requests" not in summary
    assert summary["additional_sampling_params_temperature"] == 0


def test_scalars_count_successes_over_the_duration() -> None:
    found = results(responses([RECORD, RECORD, FAILED], STARTED_AT), duration_s=4.0)
    assert found["results_num_requests_started"] == 3
    assert found["results_num_completed_requests"] == 2
    assert found["results_number_errors"] == 1
    assert found["results_error_rate"] == pytest.approx(1 / 3)
    assert found["results_error_code_frequency"] == "{'503': 1}"
    assert found["results_client_total_output_throughput"] == pytest.approx(10 / 4)
    assert found["results_num_completed_requests_per_min"] == pytest.approx(30)
    rate = responses([RECORD], STARTED_AT)[0]["client_output_token_per_s_per_request"]
    assert found["results_mean_output_throughput_token_per_s"] == pytest.approx(rate)


def test_a_row_of_failures_has_counts_and_no_statistics() -> None:
    found = results(responses([FAILED], STARTED_AT), duration_s=1.0)
    assert found["results_error_rate"] == 1.0
    assert not [name for name in found if "quantiles" in name]


def test_statistics_interpolate_and_take_the_samples_deviation() -> None:
    assert statistics([1, 2, 3, 4]) == {
        "quantiles_p5": 1.15,
        "quantiles_p25": 1.75,
        "quantiles_p50": 2.5,
        "quantiles_p75": 3.25,
        "quantiles_p90": 3.7,
        "quantiles_p95": 3.85,
        "quantiles_p99": 3.97,
        "mean": 2.5,
        "min": 1,
        "max": 4,
        "stddev": 1.291,
    }
    assert statistics([2.0])["stddev"] is None


def test_what_drafts_brought_comes_after_the_documented_keys_where_the_server_says_it() -> None:
    usage = replace(USAGE, tokens_per_step=2.5, acceptance_by_depth=(0.75, 0.5))
    listed = responses([replace(RECORD, usage=usage), RECORD], STARTED_AT)
    said = {"tokens_per_step": 2.5, "acceptance_by_depth": [0.75, 0.5]}
    assert list(listed[0]) == [*KEYS.split(), *said]
    assert listed[0].items() >= said.items()
    assert list(listed[1]) == KEYS.split()
    found = results(listed, duration_s=1.0)
    assert found["results_tokens_per_step_quantiles_p50"] == 2.5
    assert not [name for name in found if "by_depth" in name]


@pytest.mark.parametrize(
    ("said", "read"),
    [([1.0, 0.5], (1.0, 0.5)), ([], ()), (None, ()), (0.5, ()), ([0.5, "x"], ()), ([True], ())],
)
def test_depths_are_read_where_all_are_numbers(said: object, read: tuple[float, ...]) -> None:
    usage = server_usage({"tokens_per_step": 2, "acceptance_by_depth": said})
    assert (usage.tokens_per_step, usage.acceptance_by_depth) == (2, read)


def test_the_first_name_of_a_figure_that_is_not_zero_counts() -> None:
    usage = server_usage(
        {
            "prompt_tokens_count": 0,
            "prompt_tokens": 7,
            "total_tokens": 12,
            "time_to_first_response": 0.5,
            "model_execution_time": 2.0,
            "throughput_after_first_token": 3.5,
            "batch_size_used": 3.6,
            "acceptance_rate": None,
            "switching_time": 0,
            "total_latency": "soon",
            "queue_time": 0.2,
        }
    )
    assert usage == ServerUsage(
        prompt_tokens=7,
        total_tokens=12,
        ttft_s=0.5,
        end_to_end_latency_s=2.0,
        output_tokens_per_s=3.5,
        total_tokens_per_s=6.0,
        batch_size_used=4,
        switching_time_s=0,
        queue_s=0.2,
    )
