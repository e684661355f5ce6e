"""Running means that forget old values, with standard errors."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class RunningMean:
    """The plain mean of up to 1 / `rate` values, then an exponential moving average in which a new
    value has the weight `rate`. For one thread."""

    rate: float
    mean: float = 0.0
    count: int = 0
    _variance: float = 0.0
    _weights: float = 1.0  # sum of the squared weights, which add up to 1

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
