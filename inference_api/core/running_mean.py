"""Means that forget, with how well they are known."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class RunningMean:
    """The mean of all values until there are 1 / `rate` of them; then each one counts `rate`, and
    those before it less and less. Of one thread."""

    rate: float
    mean: float = 0.0
    count: int = 0
    _variance: float = 0.0
    _weights: float = 1.0  # the sum of their squares, of weights that are 1 together

    def learn(self, value: float) -> None:
        self.count += 1
        rate = max(self.rate, 1 / self.count)
        miss = value - self.mean
        self.mean += rate * miss
        self._variance = (1 - rate) * (self._variance + rate * miss * miss)
        self._weights += rate * (rate + (rate - 2) * self._weights)

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite with fewer than two values."""
        if self.count < 2:
            return math.inf
        return math.sqrt(self._variance * self._weights / (1 - self._weights))
