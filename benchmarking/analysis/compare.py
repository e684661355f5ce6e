"""Compares two runs: each metric's change with its 95 % interval, and a verdict.

Rows of the same load are repeats of each other. If both runs have repeats, a change has Welch's
interval over them; otherwise one that is estimated from blocks within the rows. Pure: any thread.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from benchmarking.analysis.curve import LoadPoint, load_points
from benchmarking.analysis.intervals import (
    BLOCKS,
    Interval,
    Statistic,
    change_over_repeats,
    change_within_runs,
    mean,
    quantile,
)
from benchmarking.analysis.latency import E2E, ITL, TTFT
from benchmarking.records import Run, Workload

MIN_CHANGE = 0.02  # smaller changes count as none, even if they are significant


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference shown"


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a row: the `statistic` of its `values`, which are in the order of time."""

    name: str
    values: Callable[[LoadPoint], Sequence[float]]
    statistic: Statistic
    is_better_higher: bool = False


@dataclass(frozen=True, slots=True)
class RowChange:
    load: Workload
    measure: str
    before: float
    after: float
    relative: Interval  # after / before - 1
    repeats: tuple[int, int]
    verdict: Verdict


def _itls_ms(point: LoadPoint) -> list[float]:
    return [] if point.burst_fault else ITL.values(point.measured)


MEASURES = (
    Measure("TTFT mean, ms", lambda point: TTFT.values(point.measured), mean),
    Measure("TTFT p99, ms", lambda point: TTFT.values(point.measured), quantile(99)),
    Measure("ITL mean, ms", _itls_ms, mean),
    Measure("ITL p99, ms", _itls_ms, quantile(99)),
    Measure("end-to-end mean, ms", lambda point: E2E.values(point.measured), mean),
    Measure(
        "tokens/s",
        lambda point: [
            tokens * BLOCKS / (point.to_s - point.from_s)
            for tokens in point.tokens_per_slice(BLOCKS)
        ],
        mean,
        is_better_higher=True,
    ),
)


def compare(before: Run, after: Run) -> list[RowChange]:
    """Returns all measures' changes for the loads of both runs, in the order of `before`."""
    first, second = _by_load(before), _by_load(after)
    return [
        change
        for load, points in first.items()
        if load in second
        for measure in MEASURES
        if (change := _change(load, measure, points, second[load])) is not None
    ]


def unmatched(before: Run, after: Run) -> list[Workload]:
    """Returns the loads that are in only one of the runs."""
    first, second = _by_load(before), _by_load(after)
    return [load for load in [*first, *second] if not (load in first and load in second)]


def _by_load(run: Run) -> dict[Workload, list[LoadPoint]]:
    points: dict[Workload, list[LoadPoint]] = defaultdict(list)
    for point in load_points(run):
        points[point.load].append(point)
    return dict(points)


def _change(
    load: Workload, measure: Measure, before: Iterable[LoadPoint], after: Iterable[LoadPoint]
) -> RowChange | None:
    """Returns the change of a measure; None if a run has no value, or a value before is 0."""
    first = [values for point in before if (values := measure.values(point))]
    second = [values for point in after if (values := measure.values(point))]
    if not first or not second:
        return None
    figures = [
        [float(measure.statistic(np.asarray(values))) for values in side]
        for side in (first, second)
    ]
    if not all(figures[0]):
        return None
    if min(len(first), len(second)) > 1:
        relative = change_over_repeats(*figures)
    else:
        relative = change_within_runs(
            [value for values in first for value in values],
            [value for values in second for value in values],
            measure.statistic,
        )
    return RowChange(
        load=load,
        measure=measure.name,
        before=sum(figures[0]) / len(figures[0]),
        after=sum(figures[1]) / len(figures[1]),
        relative=relative,
        repeats=(len(first), len(second)),
        verdict=_verdict(relative, measure.is_better_higher),
    )


def _verdict(relative: Interval, is_better_higher: bool) -> Verdict:
    if relative.holds(0.0) or abs(relative.value) < MIN_CHANGE:
        return Verdict.SAME
    return Verdict.BETTER if (relative.value > 0) == is_better_higher else Verdict.WORSE
