"""Compares the optimizer's predictions for a load with the measurements.

The optimizer assumes Poisson arrivals, so only open loops with exponential waits are compared, each
at the rate at which its requests actually came due.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.fit import Validity
from benchmarking.analysis.intervals import Interval, mean_within_run
from benchmarking.analysis.latency import ITL, TTFT, mean_tokens, output_tokens, succeeded
from benchmarking.errors import OptimizerUnusable
from benchmarking.records import MAX_SCV, Workload
from common.fetch import OK, FetchBounds, FetchFailed, ask

BOUNDS = FetchBounds(connect_s=10.0, read_s=30.0, max_bytes=2**20)
NOT_FOUND = 404
PER_MINUTE = 60.0
SLACK = 1.05  # a value may exceed a range by this factor, as repeats of the same load do

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted means of one replica at one rate. Rates are per second, times in ms.

    `method` is the optimizer's method; None if it does not say. There are 95 % bounds if the
    uncertainty of the performance data is known.
    """

    rate_per_s: float
    ttft_ms: float
    itl_ms: float
    wait_ms: float
    utilization: float  # mean share of its places in use
    max_rate_per_s: float  # within the targets; without any, the rate that takes all places
    method: str | None = None
    ttft_bounds_ms: tuple[float, float] | None = None
    itl_bounds_ms: tuple[float, float] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prediction beside the measured means, in ms. Errors are (predicted - measured) / measured.

    `input_tokens` and `output_tokens` are means per request. `in_service` is the predicted number
    of requests in service when one comes, itself included, as in `fit_points.Point`.
    """

    load: Workload
    prediction: Prediction
    ttft: Interval
    itl: Interval
    input_tokens: float
    output_tokens: float
    in_service: float

    @property
    def ttft_error(self) -> float:
        return self.prediction.ttft_ms / self.ttft.value - 1

    @property
    def itl_error(self) -> float:
        return self.prediction.itl_ms / self.itl.value - 1


class OptimizerApi:
    """An optimizer that is asked over HTTP. For one thread at a time."""

    def __init__(self, base: str) -> None:
        self._base = base.rstrip("/")

    def set_perf(self, perf: Mapping[str, Any]) -> None:
        """Post performance data for the optimizer to keep, for which it must be stateful."""
        self._post("/setModels", {"models": [perf]})

    def analyze(
        self,
        perf: Mapping[str, Any],
        shape: tuple[int, int],
        rate_per_s: float,
        out_scv: float | None = None,
    ) -> Prediction:
        """`shape` has a request's mean input and output tokens. `out_scv` is the squared
        coefficient of variation of the latter, which only service curves take into account."""
        fields = {"arrivalRate": rate_per_s * PER_MINUTE}
        if out_scv is not None and "serviceCurve" in perf:
            fields["outTokensScv"] = out_scv
        answer = self.ask("/analyze", perf, shape, fields)
        return prediction_of(answer, answer["maxRate"])

    def ask(
        self, path: str, perf: Mapping[str, Any], shape: tuple[int, int], fields: Mapping[str, Any]
    ) -> Json:
        """Returns the optimizer's answer about one replica with this performance data."""
        in_tokens, out_tokens = shape
        speed = ("decodeParms", "prefillParms", "serviceCurve")
        replica = {
            **{name: perf[name] for name in speed if name in perf},
            "maxBatchSize": batch_at(perf, out_tokens),
            "avgInTokens": in_tokens,
            "avgOutTokens": out_tokens,
        }
        return self._post(path, {**replica, **fields})

    def _post(self, path: str, body: Mapping[str, Any]) -> Json:
        try:
            response = ask(self._base + path, BOUNDS, "POST", body)
        except FetchFailed as error:
            raise OptimizerUnusable(str(error)) from error
        if response.status == NOT_FOUND:
            raise OptimizerUnusable(
                f"{self._base}{path}: 404; is it an optimizer, and a stateful one "
                "(OPTIMIZER_STATEFUL=1) if data is to be posted?"
            )
        if response.status != OK:
            raise OptimizerUnusable(f"{self._base}{path}: {response.status} {response.text}")
        try:
            answer: Json = response.json()
        except (ValueError, RecursionError) as error:
            raise OptimizerUnusable(f"{self._base}{path}: is it an optimizer? {error}") from error
        return answer


def batch_at(perf: Mapping[str, Any], out_tokens: int) -> int:
    """Returns the batch size for answers of another length, scaled as the optimizer does."""
    batch: int = perf["maxBatchSize"] * perf["atTokens"] // out_tokens
    return max(1, batch)


def is_comparable(point: LoadPoint) -> bool:
    """Returns whether a row had Poisson arrivals, and has latencies to compare."""
    load = point.load
    has_latencies = point.ttft is not None and point.itl is not None
    is_poisson = load.qps_distribution == "exponential" and load.arrival_scv is None
    return load.qps is not None and is_poisson and has_latencies


def predict(
    optimizer: OptimizerApi, perf: Mapping[str, Any], points: Iterable[LoadPoint]
) -> list[Comparison]:
    """Returns every comparable load with the optimizer's prediction. Rows of the same load are
    pooled: means are over all their requests. Raises OptimizerUnusable."""
    parts: dict[Workload, list[LoadPoint]] = {}
    for point in filter(is_comparable, points):
        parts.setdefault(point.load, []).append(point)
    return [_comparison(optimizer, perf, of_load) for of_load in parts.values()]


def _comparison(
    optimizer: OptimizerApi, perf: Mapping[str, Any], parts: Sequence[LoadPoint]
) -> Comparison:
    records = [record for part in parts for record in part.measured]
    durations_s = [part.to_s - part.from_s for part in parts]
    rate_per_s = fmean([part.offered_per_s for part in parts], weights=durations_s)
    in_tokens, out_tokens = mean_tokens(records)
    shape = (round(in_tokens), round(out_tokens))
    lengths = [output_tokens(record) for record in succeeded(records)]
    out_scv = float(np.var(lengths)) / out_tokens**2
    prediction = optimizer.analyze(perf, shape, rate_per_s, min(out_scv, MAX_SCV))
    places = batch_at(perf, shape[1])
    return Comparison(
        load=parts[0].load,
        prediction=prediction,
        ttft=mean_within_run(TTFT.values(records)),
        itl=mean_within_run(ITL.values(records)),
        input_tokens=in_tokens,
        output_tokens=out_tokens,
        in_service=min(prediction.utilization * places + 1, places),
    )


def outside(comparison: Comparison, validity: Validity) -> list[str]:
    """Returns the quantities outside the ranges that were measured for the fit, with the ranges."""
    quantities = (
        ("prompt tokens", comparison.input_tokens, validity.input_tokens),
        ("output tokens", comparison.output_tokens, validity.output_tokens),
        ("requests/s", comparison.prediction.rate_per_s, validity.rate_per_s),
        ("requests in service", comparison.in_service, validity.concurrency),
    )
    return [
        f"{value:.3g} {name}, measured {low:.3g} to {high:.3g}"
        for name, value, (low, high) in quantities
        if not low / SLACK <= value <= high * SLACK
    ]


def as_json(comparison: Comparison, validity: Validity | None) -> Json:
    """Returns a comparison as JSON. `outside_measured` is null if `validity` is not known."""
    return {
        "load": asdict(comparison.load),
        "prediction": asdict(comparison.prediction),
        "measured_ttft_ms": comparison.ttft.value,
        "measured_itl_ms": comparison.itl.value,
        "ttft_error": comparison.ttft_error,
        "itl_error": comparison.itl_error,
        "outside_measured": outside(comparison, validity) if validity else None,
    }


def warning_lines(comparisons: Iterable[Comparison], validity: Validity | None) -> Iterator[str]:
    """Yields text for people: which predictions extrapolate, and the optimizer's warnings."""
    if validity is None:
        yield "warning: no fit.json beside the performance data says what was measured for it"
    for comparison in comparisons:
        rate = f"{comparison.prediction.rate_per_s:.2f} requests/s"
        if validity is not None and (beyond := outside(comparison, validity)):
            yield f"warning: the prediction at {rate} extrapolates: {'; '.join(beyond)}"
        for warning in comparison.prediction.warnings:
            yield f"warning: at {rate}: {warning}"


def comparison_lines(comparisons: Iterable[Comparison]) -> Iterator[str]:
    """Yields a table of the predicted and measured mean TTFT and ITL at each rate."""
    yield "| | requests/s | predicted | measured | error |"
    yield "|---|---|---|---|---|"
    for comparison in comparisons:
        prediction = comparison.prediction
        rate = f"{prediction.rate_per_s:.2f}"
        ttft = _predicted(prediction.ttft_ms, prediction.ttft_bounds_ms, prediction.method)
        itl = _predicted(prediction.itl_ms, prediction.itl_bounds_ms, prediction.method)
        yield f"| TTFT, ms | {rate} | {ttft} | {comparison.ttft} | {comparison.ttft_error:+.1%} |"
        yield f"| ITL, ms | {rate} | {itl} | {comparison.itl} | {comparison.itl_error:+.1%} |"


def _predicted(ms: float, bounds_ms: tuple[float, float] | None, method: str | None) -> str:
    interval = "" if bounds_ms is None else f" [{bounds_ms[0]:.4g}, {bounds_ms[1]:.4g}]"
    return f"{ms:.2f}{interval}" + (f", {method}" if method else "")


def prediction_of(answer: Json, max_rate_per_minute: float) -> Prediction:
    return Prediction(
        rate_per_s=answer["arrivalRate"] / PER_MINUTE,
        ttft_ms=answer["ttftAverage"],
        itl_ms=answer["itlAverage"],
        wait_ms=answer["waitAverage"],
        utilization=answer["utilization"],
        max_rate_per_s=max_rate_per_minute / PER_MINUTE,
        method=answer.get("method"),
        ttft_bounds_ms=_bounds(answer, "ttftAverage"),
        itl_bounds_ms=_bounds(answer, "itlAverage"),
        warnings=tuple(answer.get("warnings", ())),
    )


def _bounds(answer: Json, name: str) -> tuple[float, float] | None:
    interval = answer.get("interval")
    return (interval[name]["low"], interval[name]["high"]) if interval else None
