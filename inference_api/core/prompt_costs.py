"""Learns the seconds that a prompt token adds to a step, by the number of rows that decode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FORGET = 0.98  # each step multiplies the weights of earlier steps by this
MIN_STEPS = 3  # a number of rows with fewer steps uses the fit of all steps
MAX_RATIO = 3.0  # a step slower than expected by more than this factor was interrupted
PRIOR_ERROR = 0.1  # relative error of a step, until errors have been measured


class Point(NamedTuple):
    """The time learned at a number of rows, and its standard error."""

    rows: float
    seconds: float
    error_s: float


@dataclass(slots=True)
class _Fit:
    """Fits seconds = slope x prompt tokens by least squares, so long chunks weigh most. Recent
    steps weigh more than old ones."""

    steps: float = 0.0
    rows: float = 0.0  # this and the next fields are weighted sums over the steps
    tokens_squared: float = 0.0
    product: float = 0.0
    seconds_squared: float = 0.0

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        self.steps = FORGET * self.steps + 1
        self.rows = FORGET * self.rows + rows
        self.tokens_squared = FORGET * self.tokens_squared + tokens * tokens
        self.product = FORGET * self.product + tokens * seconds
        self.seconds_squared = FORGET * self.seconds_squared + seconds * seconds

    @property
    def slope(self) -> float:
        return max(self.product / self.tokens_squared, 0.0)

    @property
    def error(self) -> float:
        """Standard error of the slope."""
        slope = self.slope
        missed = self.seconds_squared - 2 * slope * self.product + slope**2 * self.tokens_squared
        prior = (PRIOR_ERROR * slope) ** 2 / self.steps**2
        return math.sqrt(max(missed, 0.0) / self.steps / self.tokens_squared + prior)


class PromptCosts:
    """Estimates the seconds that each prompt token adds to a step. Decode thread only."""

    def __init__(self) -> None:
        self._fits: dict[int, _Fit] = {}  # keyed by rows.bit_length(): rows 0, 1, 2-3, 4-7, ...
        self._all = _Fit()

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        """Learn that `tokens` prompt tokens added `seconds` to a step in which `rows` decoded."""
        expected_s = (self.token_s(rows) or 0.0) * tokens
        if expected_s:
            seconds = min(seconds, MAX_RATIO * expected_s)
        self._fits.setdefault(rows.bit_length(), _Fit()).learn(rows, tokens, seconds)
        self._all.learn(rows, tokens, seconds)

    def token_s(self, rows: int) -> float | None:
        """Returns the seconds of one prompt token; None before the first prompt."""
        fit = self._fits[rows.bit_length()] if self.knows(rows) else self._all
        return fit.slope if fit.steps else None

    def knows(self, rows: int) -> bool:
        """Returns whether enough steps with prompts were seen at this number of rows."""
        fit = self._fits.get(rows.bit_length())
        return fit is not None and fit.steps >= MIN_STEPS

    def points(self) -> Sequence[Point]:
        """Returns the times learned, by ascending number of rows."""
        return [
            Point(fit.rows / fit.steps, fit.slope, fit.error)
            for _, fit in sorted(self._fits.items())
        ]
