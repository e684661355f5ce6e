"""Estimates how fast a machine was at a moment, relative to the mean over a run.

A machine's speed changes with its neighbours, its clock and its heat: closed loops with the same
load differ by more than their own errors. Each closed loop of a run shows how much longer all took
than the service curve says. The slowness of a moment is estimated from the loops around it. To
choose their number and find the error, each loop is predicted from its neighbours; the number that
predicts best is taken. A loop is weighted by its users, because a single user's speed depends on
the core that it happens to get.

If a server counts its steps, these counts give the slowness of each moment instead (`step_counts`),
and nothing is estimated from neighbouring loops. Pure: any thread.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

import numpy as np

from benchmarking.analysis.closed_loops import Loop
from benchmarking.analysis.service_curve import Points, ServiceCurve
from lab.kit.curves import closed_loop_ms
from lab.kit.mixed_loops import fit_mixed

WIDTHS = (1, 2, 4, 8)  # numbers of loops to use before a moment, and after it
ROUNDS = 3  # each fits the curve given the loops' slowness, then the slowness given the curve
PRIOR_ERROR = 0.1  # relative error of a moment's speed before loops show it
LEAST_LOOPS = 4  # fewest loops that show the error of estimates


Slownesses = tuple[tuple[float, float], ...]
"""Pairs of a moment in seconds and the slowness from then on."""


class SpeedOfMoments(Protocol):
    """How fast a machine was. `error` is the relative error of a slowness."""

    @property
    def error(self) -> float: ...

    def slowness(self, from_s: float, to_s: float) -> float:
        """Returns the mean factor by which everything took longer in that time."""

    def course(self, from_s: float, to_s: float) -> Slownesses:
        """Returns the slowness from moment to moment, relative to that mean; empty if only the mean
        is known."""

    def line(self) -> str:
        """Returns a description for people."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The slowness of closed loops over time. `logs` are logarithms of the measured over the
    curve's latencies, in order of time; `users` are the numbers of users.

    `error` is the error of predicting a loop that is left out, so it includes the loop's noise.
    """

    at_s: tuple[float, ...]
    logs: tuple[float, ...]
    users: tuple[int, ...]
    width: int
    error: float

    def slowness(self, from_s: float, to_s: float) -> float:
        middle_s = (from_s + to_s) / 2
        return math.exp(_around(self.at_s, self.logs, self.users, middle_s, self.width))

    def course(self, from_s: float, to_s: float) -> Slownesses:
        return ()

    def line(self) -> str:
        least, most = math.exp(min(self.logs)), math.exp(max(self.logs))
        return (
            f"{len(self.logs)} closed loops took {least:.2f} to {most:.2f} times what the curve "
            f"says; the speed of a moment is that of the {self.width} before and after it, ± "
            f"{self.error:.1%}"
        )


@dataclass(frozen=True, slots=True)
class StepsCourse:
    """The slowness of a server's steps relative to their mean, by the server's own counts. Each
    value holds from its moment in `from_s` to the next."""

    from_s: tuple[float, ...]
    slownesses: tuple[float, ...]
    error: float = PRIOR_ERROR

    def slowness(self, from_s: float, to_s: float) -> float:
        parts = self._parts(from_s, to_s)
        lasting_s = [end_s - begin_s for begin_s, end_s, _ in parts]
        return fmean((slowness for _, _, slowness in parts), lasting_s)

    def course(self, from_s: float, to_s: float) -> Slownesses:
        mean = self.slowness(from_s, to_s)
        return tuple((begin_s, each / mean) for begin_s, _, each in self._parts(from_s, to_s))

    def line(self) -> str:
        return (
            f"steps took {min(self.slownesses):.2f} to {max(self.slownesses):.2f} times what they "
            f"took on average; closed loops fit that to ± {self.error:.1%}"
        )

    def _parts(self, from_s: float, to_s: float) -> list[tuple[float, float, float]]:
        first = max(bisect_right(self.from_s, from_s) - 1, 0)
        begins_s = [from_s, *(at_s for at_s in self.from_s[first + 1 :] if at_s < to_s)]
        slownesses = self.slownesses[first:]
        return list(zip(begins_s, [*begins_s[1:], to_s], slownesses, strict=False))


def fit_in_course(
    loops: Sequence[Loop], course: StepsCourse, overhead: Points | None = None
) -> tuple[ServiceCurve, StepsCourse] | None:
    """Returns the curve of closed loops as if the server had always had its mean speed, and the
    course with the error of that; None for too few loops. `overhead` and errors raised are those of
    `fit_mixed`."""
    met = [course.slowness(loop.from_s, loop.to_s) for loop in loops]
    users = [loop.users for loop in loops]
    found = None
    for _ in range(ROUNDS):
        levelled = [
            _met(loop, slowness, course.error) for loop, slowness in zip(loops, met, strict=True)
        ]
        curve = fit_mixed(levelled, overhead)
        if curve is None:
            return None
        missed = np.array(_logs(loops, curve)) - np.log(met)
        mean_square = float(np.average(missed**2, weights=users))
        course = replace(course, error=math.sqrt(mean_square) * _unfitted(loops, curve))
        found = curve, course
    return found


def fit_drifting(
    loops: Sequence[Loop], overhead: Points | None = None
) -> tuple[ServiceCurve, Drift] | None:
    """Returns the curve of closed loops as if all had met the machine's mean speed, and the drift
    around it; None for too few. `overhead` and errors raised are those of `fit_mixed`.

    A loop's times are divided by the slowness of the loops *around* it: its own error stays in it.
    """
    if len(loops) < LEAST_LOOPS:
        return None
    loops = sorted(loops, key=_at_s)
    at_s = [_at_s(loop) for loop in loops]
    curve = fit_mixed([_met(loop, 1.0, PRIOR_ERROR) for loop in loops], overhead)
    for _ in range(ROUNDS):
        if curve is None:
            return None
        drift = _drift(loops, curve)
        around = _left_out(at_s, drift.logs, drift.users, drift.width)
        # Errors are relative to the expected time. Relative to the measured time, the faster of two
        # loops would have more weight.
        levelled = [
            _met(loop, math.exp(mean), drift.error * math.exp(mean - log))
            for loop, mean, log in zip(loops, around, drift.logs, strict=True)
        ]
        curve = fit_mixed(levelled, overhead)
    return None if curve is None else (curve, _drift(loops, curve))


def _at_s(loop: Loop) -> float:
    """Returns the middle of the loop, on the run's clock."""
    return (loop.from_s + loop.to_s) / 2


def _met(loop: Loop, slowness: float, error: float) -> Loop:
    """Returns the loop as it would be at slowness 1, given its slowness and the error of that."""
    e2e_ms, ttft_ms = loop.e2e_ms / slowness, loop.ttft_ms / slowness
    return replace(
        loop,
        e2e_ms=e2e_ms,
        e2e_error_ms=math.hypot(loop.e2e_error_ms / slowness, error * e2e_ms),
        ttft_ms=ttft_ms,
        ttft_error_ms=math.hypot(loop.ttft_error_ms / slowness, error * ttft_ms),
    )


def _drift(loops: Sequence[Loop], curve: ServiceCurve) -> Drift:
    at_s = tuple(_at_s(loop) for loop in loops)
    logs = np.array(_logs(loops, curve))
    values, users = tuple(logs.tolist()), tuple(loop.users for loop in loops)
    errors = {}
    for width in (*WIDTHS, len(loops)):
        missed = (logs - _left_out(at_s, values, users, width)) ** 2
        errors[width] = float(np.average(missed, weights=users)) ** 0.5
    width = min(errors, key=lambda each: errors[each])
    return Drift(at_s, values, users, width, errors[width] * _unfitted(loops, curve))


def _unfitted(loops: Sequence[Loop], curve: ServiceCurve) -> float:
    """Returns the ratio of the loops' distance from an independent curve to their distance from one
    that was fitted to them."""
    freedom = len(loops) - len(curve.decode) - len(curve.prompt_token)
    return math.sqrt(len(loops) / max(freedom, 1))


def _logs(loops: Sequence[Loop], curve: ServiceCurve) -> list[float]:
    """Returns the logarithms of measured latencies over the curve's."""
    return [
        math.log(
            loop.e2e_ms / closed_loop_ms(curve, loop.users, loop.work_tokens, loop.output_tokens)
        )
        for loop in loops
    ]


def _left_out(
    at_s: Sequence[float], logs: Sequence[float], users: Sequence[int], width: int
) -> list[float]:
    """Returns the prediction for each loop from the loops around it."""
    rest = [[*range(i), *range(i + 1, len(at_s))] for i in range(len(at_s))]
    return [
        _around(
            [at_s[j] for j in js], [logs[j] for j in js], [users[j] for j in js], at_s[i], width
        )
        for i, js in enumerate(rest)
    ]


def _around(
    times_s: Sequence[float],
    logs: Sequence[float],
    users: Sequence[int],
    at_s: float,
    width: int,
) -> float:
    before = int(np.searchsorted(times_s, at_s))
    near = slice(max(before - width, 0), before + width)
    return float(np.average(logs[near], weights=users[near]))
