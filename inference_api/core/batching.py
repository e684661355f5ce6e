"""Decides when requests may leave the queue for a user row: continuous or dynamic batching."""

import math
from dataclasses import dataclass
from typing import Self

from inference_api.core.input_queue import Waiting
from inference_api.settings import Settings


@dataclass(frozen=True, slots=True)
class Batching:
    """Decides for one model at a time. Immutable; times are seconds of the input queue's clock.

    Continuous: a request takes a row as soon as one is free. Dynamic (`gathers`): requests wait
    until there are `max_batch` of them, or the oldest has waited `timeout_s`. Then they start
    together, and no request joins them until all have ended. Once the queue is closed, no further
    request can come, so the waiting ones start at once.
    """

    gathers: bool
    max_batch: int
    timeout_s: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        timeout_s = settings.batch_timeout_ms / 1000
        return cls(settings.batching == "dynamic", settings.max_batch, timeout_s)

    def num_admitted(self, waiting: Waiting, num_busy: int, now_s: float) -> int:
        """Returns how many requests may take a row now, if that many are free."""
        if now_s < self.opens_at_s(waiting, num_busy):
            return 0
        return self.max_batch if self.gathers else waiting.num_requests

    def opens_at_s(self, waiting: Waiting, num_busy: int) -> float:
        """Returns the time from which waiting requests may take rows if no request comes, leaves or
        ends. A time in the past means now; `inf` means that one of these must happen first."""
        if not waiting.num_requests or (self.gathers and num_busy):
            return math.inf
        if not self.gathers or waiting.num_requests >= self.max_batch or waiting.is_closed:
            return -math.inf
        return waiting.oldest_arrived_s + self.timeout_s
