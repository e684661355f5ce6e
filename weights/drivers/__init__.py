"""Drivers of engines that run elsewhere: put a split in place, measure it, and say how it went."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weights.partition import Layers


@dataclass(frozen=True, slots=True)
class Ring:
    """The nodes that a model is split over, in ring order, and the most layers each can hold."""

    nodes: tuple[str, ...]
    num_layers: int
    max_layers: tuple[int, ...]


class Driver(Protocol):
    """Making one raises EngineUnusable where the engine cannot be measured. One thread."""

    @property
    def ring(self) -> Ring: ...

    def measure(self, layers: Layers) -> float:
        """Returns tokens/s. Raises TrialFailed for this split, EngineUnusable for all."""

    def finish(self, layers: Sequence[int]) -> str:
        """Leaves the engine with this split, where it goes on running, and returns what sets it for
        good, as one reads it."""
