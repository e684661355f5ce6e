"""How fast a machine was at a moment, beside the mean over a run.

A machine's own speed moves, with its neighbours, its clock and its heat: closed loops of one load
differ by more than their own errors. Each closed loop of a run says by how much everything took
longer than the service curve has it; a moment is as slow as the loops around it. How many of
them, and how far that is off, the loops themselves tell: each is guessed from its neighbours, and
the number that guesses best is taken. A loop counts as much as it has users: a single one is as
slow as the core that it happens to be on. Pure: any thread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarking.analysis.closed_loops import Loop, fit_loops
from benchmarking.analysis.service_curve import Points, ServiceCurve

WIDTHS = (1, 2, 4, 8)  # loops before a moment that count, and as many after it
ROUNDS = 3  # of a curve given the slowness of its loops, and of their slowness given the curve
PRIOR_ERROR = 0.1  # of the speed of a moment, relative
LEAST_LOOPS = 4  # that tell how far guesses are off


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

    def slowness(self, at_s: float) -> float:
        """Returns how many times as long everything took at a moment."""
        return math.exp(_around(self.at_s, self.logs, self.users, at_s, self.width))

    def line(self) -> str:
        """For people."""
        least, most = math.exp(min(self.logs)), math.exp(max(self.logs))
        return (
            f"{len(self.logs)} closed loops took {least:.2f} to {most:.2f} times what the curve "
            f"says; the speed of a moment is that of the {self.width} before and after it, ± "
            f"{self.error:.1%}"
        )


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
    curve = fit_loops([loop.met(1.0, PRIOR_ERROR) for loop in loops], overhead)
    for _ in range(ROUNDS):
        if curve is None:
            return None
        drift = _drift(loops, curve)
        around = _left_out(at_s, drift.logs, drift.users, drift.width)
        # Errors are relative to what is expected: relative to what was measured, the faster of two
        # loops would count for more.
        levelled = [
            loop.met(math.exp(mean), drift.error * math.exp(mean - log))
            for loop, mean, log in zip(loops, around, drift.logs, strict=True)
        ]
        curve = fit_loops(levelled, overhead)
    return None if curve is None else (curve, _drift(loops, curve))


def _drift(loops: Sequence[Loop], curve: ServiceCurve) -> Drift:
    at_s = tuple(loop.at_s for loop in loops)
    logs = np.array(
        [
            math.log(
                loop.e2e_ms / curve.closed_loop_ms(loop.users, loop.work_tokens, loop.output_tokens)
            )
            for loop in loops
        ]
    )
    values, users = tuple(logs.tolist()), tuple(loop.users for loop in loops)
    errors = {}
    for width in (*WIDTHS, len(loops)):
        missed = (logs - _left_out(at_s, values, users, width)) ** 2
        errors[width] = float(np.average(missed, weights=users)) ** 0.5
    width = min(errors, key=lambda each: errors[each])
    return Drift(at_s, values, users, width, errors[width])


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
