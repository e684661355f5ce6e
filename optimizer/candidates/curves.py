"""Converts service curves for the model, gives them keys, and scales them. Pure: any thread."""

import hashlib
from collections.abc import Iterable, Mapping

from optimizer.model.step_curve import NO_LIMIT, NO_OVERHEAD, Points, StepCurve
from optimizer.spec import (
    CurvePoint,
    DecodeParms,
    OverheadPoint,
    PerfData,
    PerfParms,
    PrefillParms,
    ServiceCurve,
)

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
    """Returns the data with decode times multiplied by `decode`, and prefill times by `prefill`."""
    decode_parms, prefill_parms, perf_parms = perf.decode_parms, perf.prefill_parms, perf.perf_parms
    return perf.model_copy(
        update={
            "decode_parms": DecodeParms.model_construct(
                alpha=decode_parms.alpha * decode, beta=decode_parms.beta * decode
            ),
            "prefill_parms": PrefillParms.model_construct(
                gamma=prefill_parms.gamma * prefill, delta=prefill_parms.delta * prefill
            ),
            "service_curve": perf.service_curve
            and _scaled_curve(perf.service_curve, decode, prefill),
            "perf_parms": perf_parms
            and PerfParms.model_construct(
                alpha=perf_parms.alpha * decode,
                beta=perf_parms.beta * decode,
                gamma=perf_parms.gamma * decode,
            ),
        }
    )


def _scaled_curve(curve: ServiceCurve, decode: float, prefill: float) -> ServiceCurve:
    def scaled_points(points: list[CurvePoint], factor: float) -> list[CurvePoint]:
        return [
            CurvePoint.model_construct(
                rows=point.rows, ms=point.ms * factor, standard_error=point.standard_error * factor
            )
            for point in points
        ]

    return curve.model_copy(
        update={
            "decode_ms": scaled_points(curve.decode_ms, decode),
            "prompt_token_ms": scaled_points(curve.prompt_token_ms, prefill),
        }
    )


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
