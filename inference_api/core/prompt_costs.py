"""What a prompt token adds to a step, by the rows that decode beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FORGET = 0.98  # factor on the weight of earlier steps, with every further one
MIN_STEPS = 3  # before that, all numbers of rows count together
MAX_RATIO = 3.0  # a step slower than expected by more than this factor was held up
PRIOR_ERROR = 0.1  # relative error of one step, until others have been seen to differ


class Point(NamedTuple):
    """A time that was learned at a number of rows, and its standard error."""

    rows: float
    seconds: float
    error_s: float


@dataclass(slots=True)
class _Fit:
    """Least squares of a line through the origin: seconds by prompt tokens, which long chunks
    decide. Later steps count more."""

    steps: float = 0.0
    rows: float = 0.0  # this and all below: weighted sums over the steps
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
    """Seconds that a prompt token adds to a step without any. Decode thread only."""

    def __init__(self) -> None:
        self._fits: dict[int, _Fit] = {}  # keyed by the rows' binary digits: 0, 1, 2-3, 4-7, ...
        self._all = _Fit()

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of these prompt tokens took so much longer than the rows' own."""
        expected_s = (self.of(rows) or 0.0) * tokens
        if expected_s:
            seconds = min(seconds, MAX_RATIO * expected_s)
        self._fits.setdefault(rows.bit_length(), _Fit()).learn(rows, tokens, seconds)
        self._all.learn(rows, tokens, seconds)

    def of(self, rows: int) -> float | None:
        """Seconds of one token; None until there was a prompt."""
        fit = self._fits[rows.bit_length()] if self.knows(rows) else self._all
        return fit.slope if fit.steps else None

    def knows(self, rows: int) -> bool:
        """Whether enough prompts were seen beside so many rows."""
        fit = self._fits.get(rows.bit_length())
        return fit is not None and fit.steps >= MIN_STEPS

    def points(self) -> Sequence[Point]:
        """Returns points at the numbers of rows that prompts were seen beside, ascending."""
        return [
            Point(fit.rows / fit.steps, fit.slope, fit.error)
            for _, fit in sorted(self._fits.items())
        ]
