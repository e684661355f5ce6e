"""The curve of a server at the speed of each row of a loop."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.moments import SpeedOfMoments
from benchmarking.analysis.predict import Prediction
from benchmarking.analysis.service_curve import Points, ServiceCurve, rising

TTFT_ERROR = 0.1  # of a simulated one, by what a curve is wrong of
OVERHEAD_ROUNDS = 2  # of what first tokens take beyond a curve, and of the curve given that

Ask = Callable[[LoadPoint, ServiceCurve], Prediction]
Fitter = Callable[[Points | None], tuple[ServiceCurve, SpeedOfMoments] | None]
"""A curve, given what requests wait for outside of steps if that is known, and its speeds."""


@dataclass(frozen=True, slots=True)
class Moments:
    """`curve`: at slowness 1."""

    curve: ServiceCurve
    speeds: SpeedOfMoments

    def at(self, point: LoadPoint) -> ServiceCurve:
        """Returns that of a row, without the error of its speed."""
        begun_s = min(record.scheduled_s for record in point.all_records)
        ended_s = max(record.end_s for record in point.all_records)
        return replace(
            self.curve.at_speed(self.speeds.slowness(begun_s, ended_s), 0.0),
            slowness=self.speeds.course(begun_s, ended_s),
        )


def fit_moments(
    ask: Ask,
    fit: Fitter,
    cut: Callable[[ServiceCurve], ServiceCurve],
    closed: Sequence[LoadPoint],
    places: int,
) -> Moments | None:
    """Returns what closed loops say of a server, whose curves are `cut` as it cuts prompts; None
    for too few of them. Raises Unfit."""
    found = fit(None)
    if found is None:
        return None
    for _ in range(OVERHEAD_ROUNDS):
        moments = Moments(cut(found[0]), found[1])
        found = fit(_overhead(ask, closed, places, moments)) or found
    return Moments(cut(found[0]), found[1])


def _overhead(ask: Ask, closed: Sequence[LoadPoint], places: int, moments: Moments) -> Points:
    """Returns what first tokens of closed loops took beyond a simulation of the same requests, by
    users; never less for more of them."""
    beyond: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for point in closed:
        users = point.load.concurrency
        if users is None or users > places or point.ttft is None:
            continue
        bare = replace(moments.at(point), overhead=None)
        said = ask(point, bare.exact())
        slowness = moments.speeds.slowness(point.from_s, point.to_s)
        excess_ms = max(point.ttft.mean.value - said.ttft_ms, 0.0) / slowness
        beyond[users].append((excess_ms, TTFT_ERROR * said.ttft_ms))
    means = (
        (users, map(fmean, zip(*each, strict=True)), len(each)) for users, each in beyond.items()
    )
    return rising((users, ms, error / count**0.5) for users, (ms, error), count in means)
