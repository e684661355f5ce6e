"""Converts service curves for the model, gives them keys, and scales them. Pure: any thread."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from optimizer.inferno_json import BodyT
from optimizer.model.step_curve import NO_LIMIT, NO_OVERHEAD, Points, StepCurve
from optimizer.spec import LEAST_MS, MAX_AMOUNT, CurvePoint, OverheadPoint, PerfData, ServiceCurve

DIGEST_BITS = 52  # a float holds integers of this many bits exactly

Curves = Mapping[float, StepCurve]


def key_of(curve: ServiceCurve | None) -> float:
    """Returns a key that identifies the curve; 0 for no curve."""
    if curve is None:
        return 0.0
    digest = hashlib.sha256(curve.model_dump_json().encode()).digest()
    return float((int.from_bytes(digest[:8]) >> (64 - DIGEST_BITS)) | 1)


def curves_of(perfs: Iterable[PerfData]) -> Curves:
    """Returns the curves of performance data by their keys."""
    return {
        key_of(perf.service_curve): step_curve(perf.service_curve)
        for perf in perfs
        if perf.service_curve is not None
    }


def scaled(perf: PerfData, decode: float, prefill: float) -> PerfData:
    """Returns the data with times multiplied by these factors, within the bounds of such data."""
    curve, perf_parms = perf.service_curve, perf.perf_parms
    return perf.model_copy(
        update={
            "decode_parms": _times(perf.decode_parms, decode, "alpha", "beta"),
            "prefill_parms": _times(perf.prefill_parms, prefill, "gamma", "delta"),
            "perf_parms": perf_parms and _times(perf_parms, decode, "alpha", "beta", "gamma"),
            "service_curve": curve and _scaled_curve(curve, decode, prefill),
        }
    )


def _scaled_curve(curve: ServiceCurve, decode: float, prefill: float) -> ServiceCurve:
    def times(points: Iterable[CurvePoint], factor: float) -> list[CurvePoint]:
        return [_times(each, factor, "ms", "standard_error", rows=each.rows) for each in points]

    return curve.model_copy(
        update={
            "decode_ms": times(curve.decode_ms, decode),
            "prompt_token_ms": times(curve.prompt_token_ms, prefill),
        }
    )


def _times(body: BodyT, factor: float, *names: str, **others: Any) -> BodyT:
    """Returns an object with these fields multiplied, and only `others` besides."""
    multiplied: dict[str, Any] = {}
    for name in names:
        least = LEAST_MS if name == "ms" else 0.0
        multiplied[name] = min(max(factor * getattr(body, name), least), MAX_AMOUNT)
    return cast(BodyT, body.model_construct(**multiplied, **others))


def step_curve(curve: ServiceCurve) -> StepCurve:
    """Returns a measured curve as the model uses it."""
    return StepCurve(
        decode=_points(curve.decode_ms),
        prompt_token=_points(curve.prompt_token_ms),
        chunk_tokens=float(curve.chunk_tokens or NO_LIMIT),
        budget_tokens=float(curve.budget_tokens or NO_LIMIT),
        overhead=_points(curve.overhead_ms) if curve.overhead_ms else NO_OVERHEAD,
        handling_ms=curve.handling_ms,
        speed_error=curve.speed_error,
    )


def _points(points: Iterable[CurvePoint | OverheadPoint]) -> Points:
    triples = [(float(point.rows), point.ms, point.standard_error) for point in points]
    return Points(*(tuple(column) for column in zip(*triples, strict=True)))
