"""Describes each request as `<name>_individual_responses.json` has it. Pure.

The client's times count from sending, as documented; `latency.py` counts from when a request was
due. Times are seconds, and rates tokens per second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from benchmarking.analysis.latency import output_tokens, succeeded
from benchmarking.analysis.switching import three_sigma_s
from benchmarking.records import RequestRecord

CLOCK_FORMAT = "%H:%M:%S.%f"

# The documented keys of the server's report, in their order, and the fields of ServerUsage.
SERVER_KEYS = {
    "server_number_input_tokens": "prompt_tokens",
    "server_number_output_tokens": "completion_tokens",
    "server_number_total_tokens": "total_tokens",
    "server_ttft_s": "ttft_s",
    "server_switching_time": "switching_time_s",
    "server_end_to_end_latency_s": "end_to_end_latency_s",
    "server_output_token_per_s_per_request": "output_tokens_per_s",
    "server_total_tokens_per_s_per_request": "total_tokens_per_s",
    "server_output_token_after_first_per_s_first_ten_per_request": "first_ten_tokens_per_s",
    "batch_size_used": "batch_size_used",
    "acceptance_rate": "acceptance_rate",
}
Response = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClientTimes:
    """The client's times of an answer with k events. `gaps_s` are g1..gk; g1 begins at sending."""

    gaps_s: tuple[float, ...]
    end_to_end_s: float
    ttft_s: float
    mean_inter_token_s: float | None
    output_tokens_per_s: float | None  # after the first token


def client_times(record: RequestRecord) -> ClientTimes:
    """Uses the documented formulas. T = end - sent; Lx tokens in event x; n tokens in the answer.

    tpot = sum(g2..gk) / sum(L2..Lk). TTFT = g1 - (L1 - 1) * tpot, because a first event may have
    several tokens; but at least g1 / L1, their mean time, in case later tokens were slow. For
    k <= 1, TTFT = T. Output rate = (n - 1) / (T - TTFT), without the first token; n / T for k = 1.
    """
    gaps_s = tuple(
        later - earlier
        for earlier, later in zip((record.sent_s, *record.chunk_s), record.chunk_s, strict=False)
    )
    total_s = record.end_s - record.sent_s
    tokens = output_tokens(record)
    if len(gaps_s) <= 1:
        rate = tokens / total_s if gaps_s and total_s > 0 else None
        return ClientTimes(gaps_s, total_s, total_s, gaps_s[0] if gaps_s else None, rate)
    chunk_tokens = record.chunk_tokens or (1,) * len(gaps_s)
    later_s, later_tokens = sum(gaps_s[1:]), sum(chunk_tokens[1:])
    tpot_s = later_s / later_tokens if later_tokens else 0.0
    first_tokens = max(chunk_tokens[0], 1)
    ttft_s = max(gaps_s[0] - (first_tokens - 1) * tpot_s, gaps_s[0] / first_tokens)
    rate = (tokens - 1) / (total_s - ttft_s) if total_s > ttft_s else None
    return ClientTimes(gaps_s, total_s, ttft_s, later_s / (len(gaps_s) - 1), rate)


def responses(records: Sequence[RequestRecord], started_at: datetime) -> list[Response]:
    """Returns a row's responses in the order in which they ended. `started_at` is the run's."""
    switching_s = switching_times_s(records)
    return [
        _response(record, started_at, switching_s.get(record.index))
        for record in sorted(records, key=lambda record: record.end_s)
    ]


def switching_times_s(records: Sequence[RequestRecord]) -> dict[int, float | None]:
    """Returns the switching times that the server reports, by the request's index. If it reports
    none, the first request has the documented estimate."""
    answered = succeeded(records)
    answered.sort(key=lambda record: record.sent_s)
    reported_s = {record.index: record.server.switching_time_s for record in answered}
    if answered and all(value is None for value in reported_s.values()):
        reported_s[answered[0].index] = three_sigma_s([record.server.ttft_s for record in answered])
    return reported_s


def _response(
    record: RequestRecord, started_at: datetime, switching_time_s: float | None
) -> Response:
    failure = record.failure
    head = {
        "error_code": failure.code if failure else None,
        "error_msg": failure.message if failure else "",
        "prompt_name": record.prompt_name,
        "start_time": _clock(started_at, record.sent_s),
        "end_time": _clock(started_at, record.end_s),
    }
    if failure is not None:
        return head
    server, times = record.server, client_times(record)
    prompt_tokens, counted_tokens = record.prompt_tokens or 0, record.completion_tokens or 0
    of_drafts = {  # Hearth's own figures beyond the documented ones, if the server reports them
        "tokens_per_step": server.tokens_per_step,
        "acceptance_by_depth": list(server.acceptance_by_depth) or None,
    }
    return head | {
        **{key: getattr(server, name) for key, name in SERVER_KEYS.items()},
        "server_switching_time": switching_time_s,
        "number_input_tokens": record.prompt_tokens,
        "number_output_tokens": output_tokens(record),
        "number_total_tokens": prompt_tokens + output_tokens(record),
        "client_ttft_s": times.ttft_s,
        "client_end_to_end_latency_s": times.end_to_end_s,
        "client_output_token_per_s_per_request": times.output_tokens_per_s,
        "client_total_tokens_per_s_per_request": (
            (prompt_tokens + counted_tokens) / times.end_to_end_s
            if times.end_to_end_s > 0
            else None
        ),
        "client_inter_token_latencies_s": list(times.gaps_s),
        "client_mean_inter_token_latency_s": times.mean_inter_token_s,
        **{name: figure for name, figure in of_drafts.items() if figure is not None},
    }


def _clock(started_at: datetime, at_s: float) -> str:
    return (started_at + timedelta(seconds=at_s)).strftime(CLOCK_FORMAT)
