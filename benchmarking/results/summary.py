"""Computes `<name>_summary.json`: the documented statistics of a row, as one flat object. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarking.records import RowRecord
from benchmarking.results.responses import Response

PERCENTS = (5, 25, 50, 75, 90, 95, 99)
DIGITS = 4
MODEL_IDX = 0  # the documented index of a row's model; a row has only one
METRICS = (
    "client_ttft_s",
    "client_end_to_end_latency_s",
    "client_output_token_per_s_per_request",
    "number_input_tokens",
    "number_output_tokens",
    "client_mean_inter_token_latency_s",
    "server_ttft_s",
    "server_end_to_end_latency_s",
    "server_output_token_per_s_per_request",
    "server_output_token_after_first_per_s_first_ten_per_request",
    "server_number_input_tokens",
    "server_number_output_tokens",
    "acceptance_rate",
    "tokens_per_step",  # Hearth's own
)

Summary = dict[str, Any]


def summarise(
    row: RowRecord, responses: Sequence[Response], sampling_params: dict[str, Any]
) -> Summary:
    load = row.load
    if load.concurrency:
        shape: Summary = {"num_concurrent_requests": load.concurrency}
    else:
        shape = {"qps": load.qps, "qps_distribution": load.qps_distribution}
    if load.prompts_path is None:
        requested: Summary = {
            "num_input_tokens": load.input_tokens,
            "num_output_tokens": load.output_tokens,
            **{f"additional_sampling_params_{name}": v for name, v in sampling_params.items()},
        }
    else:
        params = {"max_tokens": load.output_tokens} | sampling_params
        requested = {
            "request_count": load.num_requests,
            **{f"sampling_params_{name}": value for name, value in params.items()},
        }
    return {
        "name": f"{row.name}_summary",
        "model": load.model,
        **shape,
        **results(responses, row.end_s - row.start_s),
        **requested,
        "model_idx": MODEL_IDX,
        "timestamp": int(row.timestamp),
    }


def results(responses: Sequence[Response], duration_s: float) -> Summary:
    """Returns the `results_` keys, with statistics of completed requests where they have some."""
    succeeded = [response for response in responses if response["error_code"] is None]
    found: Summary = {}
    for metric in METRICS:
        figures = [response.get(metric) for response in succeeded]
        if values := [value for value in figures if value is not None]:
            found |= {f"results_{metric}_{name}": v for name, v in statistics(values).items()}
    errors = Counter(r["error_code"] for r in responses if r["error_code"] is not None)
    rates = [response["client_output_token_per_s_per_request"] for response in succeeded]
    known_rates = [rate for rate in rates if rate is not None]
    output_tokens = sum(response["number_output_tokens"] for response in succeeded)
    return found | {
        "results_num_requests_started": len(responses),
        "results_error_rate": errors.total() / len(responses) if responses else 0.0,
        "results_number_errors": errors.total(),
        "results_error_code_frequency": str(dict(errors)),
        "results_client_total_output_throughput": per_second(output_tokens, duration_s),
        "results_mean_output_throughput_token_per_s": (
            sum(known_rates) / len(known_rates) if known_rates else None
        ),
        "results_num_completed_requests": len(succeeded),
        "results_num_completed_requests_per_min": 60 * per_second(len(succeeded), duration_s),
    }


def statistics(values: Sequence[float]) -> dict[str, float | None]:
    """Returns statistics: linearly interpolated quantiles; the sample's stddev, if it has one."""
    quantiles = np.percentile(values, PERCENTS).tolist()
    stddev = float(np.std(values, ddof=1)) if len(values) > 1 else None
    named = {f"quantiles_p{p}": q for p, q in zip(PERCENTS, quantiles, strict=True)}
    named |= {"mean": float(np.mean(values)), "min": min(values), "max": max(values)}
    return {name: round(value, DIGITS) for name, value in named.items()} | {
        "stddev": None if stddev is None else round(stddev, DIGITS)
    }


def per_second(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
