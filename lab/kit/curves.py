"""Scales service curves, drops their errors, and computes closed loops. Pure: any thread."""

from collections.abc import Iterable
from dataclasses import replace

from benchmarking.analysis.service_curve import LEAST_MS, CurvePoint, Points, ServiceCurve, at

SETTLES = 8  # rounds until a loop's overhead and its number of users in service agree


def at_speed(curve: ServiceCurve, slowness: float) -> ServiceCurve:
    """Returns the curve of a moment at which everything takes `slowness` times as long."""
    return replace(
        curve,
        decode=_of_steps(curve.decode, slowness),
        prompt_token=_of_steps(curve.prompt_token, slowness),
        overhead=curve.overhead and tuple(_slower(curve.overhead, slowness)),
        handling_ms=slowness * curve.handling_ms,
        speed_error=0.0,
    )


def exact(curve: ServiceCurve) -> ServiceCurve:
    """Returns the curve without errors, for answers without intervals."""
    return replace(
        curve,
        decode=tuple(replace(point, standard_error=0.0) for point in curve.decode),
        prompt_token=tuple(replace(point, standard_error=0.0) for point in curve.prompt_token),
        speed_error=0.0,
    )


def overhead_ms(curve: ServiceCurve, requests: float) -> float:
    """Returns the overhead of a request while `requests` are in service; 0 if unknown."""
    return at(curve.overhead, requests) if curve.overhead else 0.0


def closed_loop_ms(
    curve: ServiceCurve, users: int, work_tokens: float, output_tokens: float
) -> float:
    """Returns the end-to-end latency in a closed loop of `users`. During their overhead, users are
    in no step."""
    e2e_ms, in_service = 0.0, float(users)
    for _ in range(SETTLES):
        outside_ms = overhead_ms(curve, in_service)
        prompts_ms = in_service * at(curve.prompt_token, in_service) * work_tokens
        e2e_ms = outside_ms + prompts_ms + output_tokens * at(curve.decode, in_service)
        in_service = 1 + (users - 1) * (1 - outside_ms / e2e_ms)
    return e2e_ms


def _of_steps(points: Points, slowness: float) -> Points:
    """Returns slower points, none with a time of 0, which the optimizer would refuse."""
    return tuple(replace(p, ms=max(p.ms, LEAST_MS)) for p in _slower(points, slowness))


def _slower(points: Points, slowness: float) -> Iterable[CurvePoint]:
    return (CurvePoint(p.rows, slowness * p.ms, slowness * p.standard_error) for p in points)
