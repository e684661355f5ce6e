"""The verdict on a run: the load up to which it kept its service levels. Pure: any thread."""

from collections.abc import Sequence

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.remarks import nothing_answered

ATTAINMENT = 0.95  # share of requests within the levels, for a load to count as kept


def verdict(points: Sequence[LoadPoint], slo: Slo) -> str:
    """Returns one sentence; empty if no load was measured or no service level was given. If nothing
    was answered, it says why, and no rate. Open loops are named by the rate they offered; without
    any, closed loops by their answers."""
    if why := nothing_answered([record for point in points for record in point.all_records]):
        return f"{why[0].upper()}{why[1:]}"
    if slo == Slo():
        return ""
    rated = [point for point in points if point.load.qps is not None] or list(points)
    rated.sort(key=lambda point: point.offered_per_s)
    kept: LoadPoint | None = None
    missed: LoadPoint | None = None
    for point in rated:
        if point.goodput(slo).attainment >= ATTAINMENT and missed is None:
            kept = point
        elif missed is None:
            missed = point
    levels = f"{slo} for {ATTAINMENT:.0%} of requests"
    if kept is None:
        return f"Misses {levels} at {_rate(missed)}, the lowest load." if missed else ""
    if missed is None:
        return f"Meets {levels} at every load, up to {_rate(kept)}."
    return f"Meets {levels} up to {_rate(kept)}; misses them at {_rate(missed)}."


def _rate(point: LoadPoint) -> str:
    return f"{point.offered_per_s:.3g} requests/s"
