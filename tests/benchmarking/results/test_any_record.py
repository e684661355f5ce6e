"""Whatever a server sends and counts, figures are ones that an answer can have."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarking.analysis.latency import hidden_tokens, output_tokens
from benchmarking.load.usage import KEYS, server_usage
from benchmarking.records import RequestError, RequestRecord, RowRecord, Workload
from benchmarking.results.responses import responses
from benchmarking.results.row_metrics import row_metrics
from benchmarking.results.summary import results

STARTED_AT = datetime(2026, 1, 2, tzinfo=UTC)
STEPS_S = st.integers(0, 10**7).map(lambda us: us / 1e6)
FIGURES = st.one_of(st.none(), st.integers(-3, 10**6), st.floats(), st.just(10**400), st.text())
USAGES = st.fixed_dictionaries(
    {"completion_tokens_details": st.fixed_dictionaries({"reasoning_tokens": FIGURES})},
    optional={key: FIGURES for keys in KEYS.values() for key in keys},
)


@st.composite
def records(draw: st.DrawFn, index: int = 0) -> RequestRecord:
    num_events = draw(st.integers(0, 6))
    steps_s = draw(st.lists(STEPS_S, min_size=num_events + 3, max_size=num_events + 3))
    due_s, sent_s, *chunk_s, end_s = accumulate(steps_s)
    tokens = st.lists(st.integers(0, 9), min_size=num_events, max_size=num_events)
    return RequestRecord(
        row=0,
        index=index,
        model="m",
        prompt_name="p",
        scheduled_s=due_s,
        sent_s=sent_s,
        end_s=end_s + 1e-6,
        chunk_s=tuple(chunk_s),
        chunk_tokens=tuple(draw(st.one_of(st.just([]), tokens))),
        prompt_tokens=draw(st.integers(1, 100)),
        completion_tokens=draw(st.one_of(st.none(), st.integers(0, 50))),
        usage=draw(st.one_of(st.none(), USAGES.map(server_usage))),
        finish_reason=draw(st.sampled_from([None, "stop", "length", "error", "tool_calls"])),
        error=draw(st.one_of(st.none(), st.just(RequestError("500", "made")))),
    )


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


@given(st.lists(records(), min_size=1, max_size=4))
def test_no_time_is_before_the_request_and_no_figure_is_none_that_can_be(
    of_row: list[RequestRecord],
) -> None:
    start_s, end_s = min(r.scheduled_s for r in of_row), max(r.end_s for r in of_row)
    row = RowRecord(Workload("m", 1, 1, len(of_row), 1), "row", start_s, end_s, 1.7e9)
    listed = responses(of_row, STARTED_AT)
    metrics = row_metrics(row, of_row)
    for content in (listed, metrics, results(listed, end_s - start_s)):
        json.dumps(content, allow_nan=False)
        assert all(number >= 0 and math.isfinite(number) for number in numbers(content))
    for response in listed:
        if response["error_code"] is None:
            assert response["client_ttft_s"] <= response["client_end_to_end_latency_s"]
    completed = [record for record in of_row if record.failure is None]
    assert metrics["num_completed_requests"] == len(completed)
    assert [r["error_code"] for r in listed].count(None) == len(completed)
    for record in completed:
        assert record.chunk_s
        assert output_tokens(record) >= 1
        said = record.usage.completion_tokens if record.usage else None
        assert 0 <= hidden_tokens(record) <= (said or 0)
