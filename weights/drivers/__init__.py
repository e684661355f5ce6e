"""Drivers of engines that run elsewhere: put a split in place, measure it, and say how it went.

A driver is a context: what it has started is ended when it is left. One thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from weights.partition import Layers


@dataclass(frozen=True, slots=True)
class Ring:
    """The nodes that a model is split over, in ring order, and the most layers each can hold."""

    nodes: tuple[str, ...]
    num_layers: int
    max_layers: tuple[int, ...]


class Driver(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @property
    def ring(self) -> Ring:
        """Once entered; raises EngineUnusable on entering."""

    def measure(self, layers: Layers) -> float:
        """Returns tokens/s with this split. Raises TrialFailed where it does not run, and
        EngineUnusable where none would."""

    def finish(self, layers: Sequence[int]) -> str:
        """Leaves the engine with this split, where it goes on running, and returns what sets it for
        good, as one reads it."""
