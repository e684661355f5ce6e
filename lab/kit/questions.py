"""Questions to an optimizer beyond those of the commands: a row replayed, and a highest rate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.latency import input_tokens, mean_tokens, output_tokens
from benchmarking.analysis.predict import PER_MINUTE, OptimizerApi, Prediction, prediction_of
from benchmarking.records import RequestRecord


def request_shape(records: Iterable[RequestRecord]) -> tuple[int, int]:
    """`mean_tokens` as the optimizer takes them: whole."""
    in_tokens, out_tokens = mean_tokens(records)
    return round(in_tokens), round(out_tokens)


def replay(
    optimizer: OptimizerApi,
    perf: Mapping[str, Any],
    point: LoadPoint,
    shape: tuple[int, int],
    slowness: Sequence[tuple[float, float]] = (),
) -> Prediction:
    """Just the requests of a row, when they were sent: what remains to chance is the server. TTFT
    is from when they were due, as it is measured. `slowness`: of moments on the run's clock, as
    `ServiceCurve` has it."""
    sent = sorted(point.all_records, key=lambda record: record.sent_s)
    start_s = sent[0].sent_s
    trace = [
        {
            "atMs": 1000 * (record.sent_s - start_s),
            "inTokens": input_tokens(record) or shape[0],
            "outTokens": output_tokens(record) if record.chunk_s else shape[1],
        }
        for record in sent
    ]
    asked = {
        "arrivalRate": point.offered_per_s * PER_MINUTE,
        "trace": trace,
        "warmupRequests": sum(record.is_warmup for record in sent),
    }
    if slowness:
        asked["slowness"] = [
            {"atMs": 1000 * max(at_s - start_s, 0.0), "factor": factor} for at_s, factor in slowness
        ]
    answer = optimizer.ask("/analyze", perf, shape, asked)
    late_ms = fmean(1000 * (record.sent_s - record.scheduled_s) for record in point.measured)
    return _sent_late(prediction_of(answer, answer["maxRate"]), late_ms)


def max_rate(
    optimizer: OptimizerApi, perf: Mapping[str, Any], shape: tuple[int, int], slo: Slo
) -> Prediction | None:
    """At the highest rate whose *mean* TTFT and ITL keep `slo`; None where none does."""
    targets = {"slo-ttft": slo.ttft_ms or 0.0, "slo-itl": slo.itl_ms or 0.0}
    answer = optimizer.ask("/size", perf, shape, targets)
    return prediction_of(answer, answer["arrivalRate"]) if answer["feasible"] else None


def _sent_late(predicted: Prediction, late_ms: float) -> Prediction:
    """Returns that of requests which were sent so long after they were due, on average."""
    bounds = predicted.ttft_bounds_ms
    return replace(
        predicted,
        ttft_ms=predicted.ttft_ms + late_ms,
        ttft_bounds_ms=bounds and (bounds[0] + late_ms, bounds[1] + late_ms),
    )
