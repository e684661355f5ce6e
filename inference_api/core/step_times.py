"""Histograms of step times, by the number of rows that decoded."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class StepTimes:
    """Histograms of step times. Batch sizes are rounded up to a power of two; 0 stands for steps
    with prompts only. One thread adds. Any thread may read, and sees each group whole."""

    _counts: dict[int, list[int]] = field(default_factory=dict)  # steps by batch size and bucket
    _sums_s: dict[int, float] = field(default_factory=dict)

    def add(self, batch_size: int, seconds: float) -> None:
        size = 1 << (batch_size - 1).bit_length() if batch_size else 0
        counts = self._counts.get(size)
        if counts is None:
            self._sums_s[size] = 0.0
            counts = self._counts[size] = [0] * (len(BUCKETS_S) + 1)
        counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sums_s[size] += seconds

    def by_batch_size(self) -> Iterator[tuple[int, list[int], float]]:
        """Yields for each group its largest batch size, the number of steps in each bucket (the
        last is for times above all bounds), and the sum of their seconds."""
        for size, counts in sorted(self._counts.copy().items()):
            yield size, counts.copy(), self._sums_s[size]
