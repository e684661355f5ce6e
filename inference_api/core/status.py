"""What others see and hear of the decode thread: its phase, snapshots of its work, its hooks.

Values. That thread makes them, any thread reads them.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum

from inference_api.core.draft_depths import DraftDepths
from inference_api.core.served_model import StepTotals


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """State of one model's rows at the end of the last step."""

    busy_rows: int = 0
    totals: StepTotals = field(default_factory=StepTotals)
    depths: DraftDepths = field(default_factory=DraftDepths)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the decode thread at the end of its last step."""

    stepped_at_s: float
    models: Mapping[str, ModelSnapshot]

    @property
    def busy_rows(self) -> int:
        """Busy rows of all models together."""
        return sum(each.busy_rows for each in self.models.values())

    @property
    def totals(self) -> StepTotals:
        """Totals of all models together."""
        all_totals = [astuple(each.totals) for each in self.models.values()]
        return StepTotals(*map(sum, zip(*all_totals, strict=True)))


@dataclass(frozen=True, slots=True)
class Hooks:
    """The process's part in the decode thread's life: each is called once, by that thread.

    `on_loaded` before the first request is taken, the others at its very end.
    """

    on_loaded: Callable[[], None] = lambda: None
    on_load_failed: Callable[[], None] = lambda: None
    on_failed: Callable[[], None] = lambda: None
