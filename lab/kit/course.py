"""The speed of a machine over time. Pure: any thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from common.numerics import FloatArray


@dataclass(frozen=True, slots=True)
class Course:
    """A machine's slowness over time. From each moment of `from_ms` on, everything takes `slowness`
    times as long as the curve says; the first value also holds before. `work_ms` is the work done
    until each moment, in ms at slowness 1."""

    from_ms: FloatArray
    slowness: FloatArray
    work_ms: FloatArray

    @classmethod
    def of(cls, changes: Sequence[tuple[float, float]]) -> Self:
        """`changes` are ascending moments, each with the slowness from then on; empty means 1."""
        from_ms, slowness = np.array(changes or [(0.0, 1.0)]).T
        work_ms = np.cumulative_sum(np.diff(from_ms) / slowness[:-1], include_initial=True)
        return cls(from_ms, slowness, work_ms)

    def done(self, at_ms: FloatArray) -> FloatArray:
        """Returns the work done until each moment."""
        part = np.maximum(np.searchsorted(self.from_ms, at_ms, "right") - 1, 0)
        return self.work_ms[part] + (at_ms - self.from_ms[part]) / self.slowness[part]

    def when(self, work_ms: FloatArray) -> FloatArray:
        """Returns the moments at which these amounts of work are done."""
        part = np.maximum(np.searchsorted(self.work_ms, work_ms, "right") - 1, 0)
        return self.from_ms[part] + (work_ms - self.work_ms[part]) * self.slowness[part]
