"""Drivers of engines that run elsewhere: they apply a split and measure it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weights.partition import Layers

MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Ring:
    """The nodes of a split model, in ring order, with the most layers that each can hold."""

    nodes: tuple[str, ...]
    num_layers: int
    max_layers: tuple[int, ...]


class Driver(Protocol):
    """An engine. Constructors raise EngineUnusable if it cannot be measured. One thread."""

    @property
    def ring(self) -> Ring: ...

    def measure(self, layers: Layers) -> float:
        """Returns tokens/s. Raises TrialFailed if this split fails, EngineUnusable if all would."""

    def finish(self, layers: Sequence[int]) -> str:
        """Leave a running engine with this split. Returns the setting that makes the split
        permanent, as text."""


def last_line(text: str) -> str:
    """Returns the last line that an engine printed, for a message."""
    lines = text.strip().splitlines() or ["it printed nothing"]
    return lines[-1].strip()[:MAX_REASON_CHARS]
