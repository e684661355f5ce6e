"""How fast a machine was at a moment, beside the mean over a run.

A machine's own speed moves, with its neighbours, its clock and its heat: closed loops of one load
differ by more than their own errors. Each closed loop of a run says by how much everything took
longer than the service curve has it; a moment is as slow as the loops around it. How many of
them, and how far that is off, the loops themselves tell: each is guessed from its neighbours, and
the number that guesses best is taken. A loop counts as much as it has users: a single one is as
slow as the core that it happens to be on.

Of a server that counts its steps these tell instead how slow each moment was (`step_counts`): then
nothing is guessed from the loops around it. Pure: any thread.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

import numpy as np

from benchmarking.analysis.closed_loops import Loop, fit_loops
from benchmarking.analysis.service_curve import Points, ServiceCurve
from lab.kit.curves import closed_loop_ms

WIDTHS = (1, 2, 4, 8)  # loops before a moment that count, and as many after it
ROUNDS = 3  # of a curve given the slowness of its loops, and of their slowness given the curve
PRIOR_ERROR = 0.1  # of the speed of a moment, relative
LEAST_LOOPS = 4  # that tell how far guesses are off


Slownesses = tuple[tuple[float, float], ...]
"""Moments in seconds, each with how many times as long everything takes from there on."""


class SpeedOfMoments(Protocol):
    """How fast a machine was. `error`: of what is said of a time, relative."""

    @property
    def error(self) -> float: ...

    def slowness(self, from_s: float, to_s: float) -> float:
        """Returns how many times as long everything took in that time, on average."""

    def course(self, from_s: float, to_s: float) -> Slownesses:
        """Returns the same from moment to moment, beside that average; empty where only that is
        known."""

    def line(self) -> str:
        """For people."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Logarithms of how much longer closed loops took than the curve says, in order of time, and
    the users of each.

    `error`: of a guess for a loop that is left out, so that what is guessed may be as noisy.
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
        """For people."""
        least, most = math.exp(min(self.logs)), math.exp(max(self.logs))
        return (
            f"{len(self.logs)} closed loops took {least:.2f} to {most:.2f} times what the curve "
            f"says; the speed of a moment is that of the {self.width} before and after it, ± "
            f"{self.error:.1%}"
        )


@dataclass(frozen=True, slots=True)
class StepsCourse:
    """How many times as long a server's steps took as on average, by its own count of them,
    `from_s` one moment to the next."""

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
    """Returns the curve of closed loops as if their steps had taken as long as on average, and the
    course with how far off that is; None for too few. `overhead` and what is raised: as of
    `fit_loops`."""
    met = [course.slowness(loop.from_s, loop.to_s) for loop in loops]
    users = [loop.users for loop in loops]
    found = None
    for _ in range(ROUNDS):
        levelled = [
            _met(loop, slowness, course.error) for loop, slowness in zip(loops, met, strict=True)
        ]
        curve = fit_loops(levelled, overhead)
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
    around it; None for too few. `overhead` and what is raised: as of `fit_loops`.

    What a loop took is divided by how slow the loops *around* it were: its own error stays in it.
    """
    if len(loops) < LEAST_LOOPS:
        return None
    loops = sorted(loops, key=lambda loop: loop.at_s)
    at_s = [loop.at_s for loop in loops]
    curve = fit_loops([_met(loop, 1.0, PRIOR_ERROR) for loop in loops], overhead)
    for _ in range(ROUNDS):
        if curve is None:
            return None
        drift = _drift(loops, curve)
        around = _left_out(at_s, drift.logs, drift.users, drift.width)
        # Errors are relative to what is expected: relative to what was measured, the faster of two
        # loops would count for more.
        levelled = [
            _met(loop, math.exp(mean), drift.error * math.exp(mean - log))
            for loop, mean, log in zip(loops, around, drift.logs, strict=True)
        ]
        curve = fit_loops(levelled, overhead)
    return None if curve is None else (curve, _drift(loops, curve))


def _met(loop: Loop, slowness: float, error: float) -> Loop:
    """Returns what it would have been at slowness 1, had it met this one, known to `error`."""
    e2e_ms, ttft_ms = loop.e2e_ms / slowness, loop.ttft_ms / slowness
    return replace(
        loop,
        e2e_ms=e2e_ms,
        e2e_error_ms=math.hypot(loop.e2e_error_ms / slowness, error * e2e_ms),
        ttft_ms=ttft_ms,
        ttft_error_ms=math.hypot(loop.ttft_error_ms / slowness, error * ttft_ms),
    )


def _drift(loops: Sequence[Loop], curve: ServiceCurve) -> Drift:
    at_s = tuple(loop.at_s for loop in loops)
    logs = np.array(_logs(loops, curve))
    values, users = tuple(logs.tolist()), tuple(loop.users for loop in loops)
    errors = {}
    for width in (*WIDTHS, len(loops)):
        missed = (logs - _left_out(at_s, values, users, width)) ** 2
        errors[width] = float(np.average(missed, weights=users)) ** 0.5
    width = min(errors, key=lambda each: errors[each])
    return Drift(at_s, values, users, width, errors[width] * _unfitted(loops, curve))


def _unfitted(loops: Sequence[Loop], curve: ServiceCurve) -> float:
    """Returns how many times as far loops are from what they did not help to fit as from a curve
    that has been fitted to them."""
    freedom = len(loops) - len(curve.decode) - len(curve.prompt_token)
    return math.sqrt(len(loops) / max(freedom, 1))


def _logs(loops: Sequence[Loop], curve: ServiceCurve) -> list[float]:
    """Returns logarithms of how much longer loops took than the curve says."""
    return [
        math.log(
            loop.e2e_ms / closed_loop_ms(curve, loop.users, loop.work_tokens, loop.output_tokens)
        )
        for loop in loops
    ]


def _left_out(
    at_s: Sequence[float], logs: Sequence[float], users: Sequence[int], width: int
) -> list[float]:
    """Returns for each loop what the others around it say."""
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
