"""Root finding on many increasing functions at once. Pure: any thread."""

from collections.abc import Callable

import numpy as np

from optimizer.model.latency import BoolArray, FloatArray, IntArray

MAX_STEPS = 80  # plain bisection needs 50 from any bracket; Chandrupatla's rule some 8
RELATIVE_TOLERANCE = 1e-12

Function = Callable[[IntArray, FloatArray], FloatArray]
"""(indices of problems, one point for each) -> the value there; negative below the root."""


def find_roots(function: Function, low: FloatArray, high: FloatArray) -> FloatArray:
    """x in [low, high] with function(x) = 0, given function(low) < 0 < function(high).

    Chandrupatla's method (Advances in Engineering Software 28, 1997): inverse quadratic
    interpolation where the three last points allow it, bisection where they do not. Solved
    problems leave the batch, so the cost is that of the steps really needed.
    """
    roots = (low + high) / 2
    problems = np.arange(low.size)
    search = _Search(low, function(problems, low), high, function(problems, high))
    for _ in range(MAX_STEPS):
        if not problems.size:
            break
        x = search.next_point()
        search = search.narrowed(x, function(problems, x))
        roots[problems] = search.best()
        unsolved = np.flatnonzero(~search.is_solved())
        if unsolved.size < problems.size:
            problems, search = problems[unsolved], search.take(unsolved)
    return roots


class _Search:
    """Brackets [a, b] (b is the newest point) and the point c dropped last. One call's own."""

    def __init__(self, a: FloatArray, f_a: FloatArray, b: FloatArray, f_b: FloatArray) -> None:
        self.a, self.f_a, self.b, self.f_b = a, f_a, b, f_b
        self.c, self.f_c = a, f_a

    def take(self, index: IntArray) -> "_Search":
        part = _Search(self.a[index], self.f_a[index], self.b[index], self.f_b[index])
        part.c, part.f_c = self.c[index], self.f_c[index]
        return part

    def next_point(self) -> FloatArray:
        """An interpolated point if Chandrupatla's test trusts it, else the middle."""
        with np.errstate(divide="ignore", invalid="ignore"):
            xi = (self.a - self.b) / (self.c - self.b)
            phi = (self.f_a - self.f_b) / (self.f_c - self.f_b)
            trusted = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            t = self.f_a / (self.f_b - self.f_a) * self.f_c / (self.f_b - self.f_c) + (
                self.c - self.a
            ) / (self.b - self.a) * self.f_a / (self.f_c - self.f_a) * self.f_b / (
                self.f_c - self.f_b
            )
        t = np.where(trusted & np.isfinite(t), t, 0.5)
        margin = np.minimum(self._tolerance() / np.abs(self.b - self.a), 0.5)
        return self.a + np.clip(t, margin, 1 - margin) * (self.b - self.a)

    def narrowed(self, x: FloatArray, f_x: FloatArray) -> "_Search":
        same_side = np.sign(f_x) == np.sign(self.f_a)
        pick = _Search(
            x, f_x, np.where(same_side, self.b, self.a), np.where(same_side, self.f_b, self.f_a)
        )
        pick.c = np.where(same_side, self.a, self.b)
        pick.f_c = np.where(same_side, self.f_a, self.f_b)
        return pick

    def best(self) -> FloatArray:
        return np.where(np.abs(self.f_a) < np.abs(self.f_b), self.a, self.b)

    def is_solved(self) -> BoolArray:
        solved: BoolArray = (self.best_value() == 0) | (
            np.abs(self.b - self.a) <= 2 * self._tolerance()
        )
        return solved

    def best_value(self) -> FloatArray:
        return np.minimum(np.abs(self.f_a), np.abs(self.f_b))

    def _tolerance(self) -> FloatArray:
        return RELATIVE_TOLERANCE * np.maximum(np.abs(self.best()), 1.0)
