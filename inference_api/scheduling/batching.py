"""When requests may leave the queue for a user row: continuous or dynamic batching.

Immutable. Each model is asked about by itself; times are of the input queue's clock.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from inference_api.scheduling.input_queue import Waiting
from inference_api.settings import Settings


class Batching(Protocol):
    """The loop asks at every step how many may enter and, before it rests, when next."""

    def num_admitted(self, waiting: Waiting, num_busy: int, now_s: float) -> int:
        """Returns how many requests may take a row now, if that many are free."""

    def opens_at_s(self, waiting: Waiting, num_busy: int) -> float:
        """Returns from when on some may, as long as nobody comes, leaves or ends: at once where
        that is past, `inf` where it takes one of these."""


@dataclass(frozen=True, slots=True)
class ContinuousBatching:
    """Whoever waits takes a row as soon as one is free."""

    def num_admitted(self, waiting: Waiting, num_busy: int, now_s: float) -> int:
        return waiting.num_requests

    def opens_at_s(self, waiting: Waiting, num_busy: int) -> float:
        return -math.inf if waiting.num_requests else math.inf


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Requests gather until `max_batch` wait or the oldest has waited `timeout_s`; nobody joins
    them before the last one has ended. Once the queue is closed there is nobody to gather for."""

    max_batch: int
    timeout_s: float

    def num_admitted(self, waiting: Waiting, num_busy: int, now_s: float) -> int:
        return self.max_batch if now_s >= self.opens_at_s(waiting, num_busy) else 0

    def opens_at_s(self, waiting: Waiting, num_busy: int) -> float:
        if num_busy or not waiting.num_requests:
            return math.inf
        if waiting.num_requests >= self.max_batch or waiting.is_closed:
            return -math.inf
        return waiting.oldest_came_s + self.timeout_s


def batching_of(settings: Settings) -> Batching:
    if settings.batching == "dynamic":
        return DynamicBatching(settings.max_batch, settings.batch_timeout_ms / 1000)
    return ContinuousBatching()
