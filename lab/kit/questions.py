"""Queries to an optimizer that the benchmarking commands do not make."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.latency import mean_tokens
from benchmarking.analysis.predict import OptimizerApi, Prediction, prediction_of
from benchmarking.records import RequestRecord


def request_shape(records: Iterable[RequestRecord]) -> tuple[int, int]:
    """Returns `mean_tokens` as whole numbers, which the optimizer needs."""
    in_tokens, out_tokens = mean_tokens(records)
    return round(in_tokens), round(out_tokens)


def max_rate(
    optimizer: OptimizerApi, perf: Mapping[str, Any], shape: tuple[int, int], slo: Slo
) -> Prediction | None:
    """Predicts the highest rate whose *mean* TTFT and ITL keep `slo`. Returns None without one."""
    targets = {"slo-ttft": slo.ttft_ms or 0.0, "slo-itl": slo.itl_ms or 0.0}
    answer = optimizer.ask("/size", perf, shape, targets)
    return prediction_of(answer, answer["arrivalRate"]) if answer["feasible"] else None
