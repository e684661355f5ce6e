"""The decode thread's phase, snapshots and hooks, by which others observe it.

The decode thread makes phases and snapshots; any thread may read them.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum

from inference_api.core.draft_depths import DraftDepths
from inference_api.core.served_model import StepTotals
from inference_api.core.state.pool import NO_PAGES, PageCounts


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
    paused: int = 0  # requests that have paused and wait for pages
    pages: PageCounts = NO_PAGES  # none while the model is not in memory
    draft_pages: PageCounts = NO_PAGES  # none without a draft model
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
    def paused(self) -> int:
        """Paused requests of all models together."""
        return sum(each.paused for each in self.models.values())

    @property
    def pages(self) -> PageCounts:
        """Pages of all models together, although their sizes differ."""
        held, cached, free = zip(*(each.pages for each in self.models.values()), strict=True)
        return PageCounts(sum(held), sum(cached), sum(free))

    @property
    def totals(self) -> StepTotals:
        """Totals of all models together."""
        all_totals = [astuple(each.totals) for each in self.models.values()]
        return StepTotals(*map(sum, zip(*all_totals, strict=True)))


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of the decode thread, called on that thread at most once. `on_loaded` is called
    before it takes the first request; the others are called when it ends because of an error."""

    on_loaded: Callable[[], None] = lambda: None
    on_load_failed: Callable[[], None] = lambda: None
    on_failed: Callable[[], None] = lambda: None
