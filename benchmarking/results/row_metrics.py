"""Computes `metrics.json`: figures of each row beyond the documented summary. Pure.

Latencies count from when a request was due. Rates are those of the steady window, during which the
full load was offered (`curve.steady_window`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from benchmarking.analysis.bursts import burst_fault
from benchmarking.analysis.curve import load_point
from benchmarking.analysis.latency import e2e_s, hidden_tokens, itl_s, succeeded, ttft_s
from benchmarking.analysis.switching import three_sigma_s
from benchmarking.records import RequestRecord, RowRecord, Run

PERCENTS = (50, 90, 95, 99)
BUSY_CPU_SHARE = 0.7  # share of a core above which the client itself may be the bottleneck
LATE_LAG_P99_S = 0.02

Metrics = dict[str, Any]


def run_metrics(run: Run) -> Metrics:
    rows = [row_metrics(row, run.all_of(number)) for number, row in enumerate(run.rows)]
    return {"schema_version": run.schema_version, "run": run.name, "seed": run.seed, "rows": rows}


def row_metrics(row: RowRecord, records: Sequence[RequestRecord]) -> Metrics:
    """Returns a row's metrics. `records` are all of its records, including the warm-up."""
    measured = [record for record in records if record.is_measured]
    answered = succeeded(measured)
    errors = Counter(failed.code for record in measured if (failed := record.failure))
    fault = burst_fault(measured)
    return {
        "name": row.name,
        **asdict(row.load),
        "error": row.error,
        "client_rates_unusable": fault,
        "was_interrupted": row.was_interrupted,
        "duration_s": row.end_s - row.start_s,
        "num_requests_warmup": sum(record.is_warmup for record in records),
        "num_requests_measured": len(measured),
        "num_completed_requests": len(answered),
        "errors_by_code": dict(sorted(errors.items())),
        "num_waits": sum(record.num_waits for record in records),
        "hidden_tokens": sum(map(hidden_tokens, answered)),
        "ttft_s": _distribution(ttft_s, answered),
        "server_queue_s": _distribution(lambda record: record.server.queue_s, answered),
        "itl_s": None if fault else _distribution(itl_s, answered),
        "end_to_end_latency_s": _distribution(e2e_s, answered),
        "send_delay_s": _distribution(lambda record: record.sent_s - record.scheduled_s, measured),
        "steady_window": steady_window(row, records),
        "batch_size_used_mean": _mean(r.server.batch_size_used for r in answered),
        "acceptance_rate_mean": _mean(r.server.acceptance_rate for r in answered),
        "tokens_per_step_mean": _mean(r.server.tokens_per_step for r in answered),
        **switching(records),
        "client": None if row.overhead is None else asdict(row.overhead),
        "is_client_bottleneck": is_client_bottleneck(row),
    }


def steady_window(row: RowRecord, records: Sequence[RequestRecord]) -> Metrics | None:
    """Returns the window and rates of a row's load point; None if nothing was measured."""
    if not any(record.is_measured for record in records):
        return None
    point = load_point(row, records)
    return {
        "start_s": point.from_s,
        "end_s": point.to_s,
        "requests_per_s": point.throughput_per_s,
        "output_tokens_per_s": point.tokens_per_s,
    }


def switching(records: Sequence[RequestRecord]) -> Metrics:
    """Returns the server's time and the estimate, including the warm-up, which has the switch."""
    answered = sorted(succeeded(records), key=lambda record: record.sent_s)
    reported_s = [s for record in answered if (s := record.server.switching_time_s) is not None]
    return {
        "switching_time_s": max(reported_s, default=None),
        "switching_time_estimate_s": three_sigma_s([r.server.ttft_s for r in answered]),
    }


def is_client_bottleneck(row: RowRecord) -> bool:
    """Returns whether the client may have limited the figures."""
    overhead = row.overhead
    return overhead is not None and (
        overhead.cpu_share > BUSY_CPU_SHARE or overhead.lag_p99_s > LATE_LAG_P99_S
    )


def _distribution(
    figure_of: Callable[[RequestRecord], float | None], records: Sequence[RequestRecord]
) -> dict[str, float] | None:
    values = [value for record in records if (value := figure_of(record)) is not None]
    if not values:
        return None
    quantiles = np.percentile(values, PERCENTS).tolist()
    named = {f"p{percent}": value for percent, value in zip(PERCENTS, quantiles, strict=True)}
    return {**named, "mean": fmean(values), "min": min(values), "max": max(values)}


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
