"""A model whose weights are in memory: everything that steps of it need, as one value.

It belongs to the decode thread, but for `served`, which is for any.
"""

from dataclasses import dataclass
from typing import Self

from inference_api.core.drafts import Drafting
from inference_api.core.plan import PlannedStep, StepPlanner
from inference_api.core.rows import RowTable
from inference_api.core.served_model import ServedModel
from inference_api.core.state.bound_pages import BoundRowPages, ChunkMemory
from inference_api.core.state.row_pages import Reuse, RowPages
from inference_api.runner import ModelRunner
from inference_api.settings import Settings


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Its rows are its own, and so are the prefixes that they hold."""

    served: ServedModel
    runner: ModelRunner
    rows: RowTable
    planner: StepPlanner
    drafter: ModelRunner | None = None  # a smaller model that guesses for `runner`
    speculation: Drafting | None = None

    @property
    def name(self) -> str:
        return self.served.name

    @classmethod
    def serving(
        cls,
        served: ServedModel,
        runner: ModelRunner,
        settings: Settings,
        drafter: ModelRunner | None = None,
        speculation: Drafting | None = None,
    ) -> Self:
        """Makes one of loaded runners, with empty rows."""
        rows = RowTable(runner.max_rows, _pages(runner, settings))
        planner = StepPlanner(rows, runner, settings, speculation, served.costs)
        return cls(served, runner, rows, planner, drafter, speculation)

    def warm_up(self) -> None:
        """Prepare the device, so that the first request is as fast as the next, and learn what
        steps take."""
        self.runner.warm_up()
        if self.drafter is not None:
            self.drafter.warm_up()
        self.served.costs.measure(self.runner)
        self.served.costs.measure_prompt(self.runner)
        self.runner.give_back(range(self.runner.layout.num_pages))

    @property
    def kv_cache_usage(self) -> float:
        """The share of the pages that busy rows hold. Any thread."""
        return self.rows.pages.num_held / self.runner.layout.num_pages

    def idle(self) -> None:
        """While none of its rows has work."""
        if self.runner.idle():
            self.rows.pages.forget_cached()

    def took(self, step: PlannedStep, model_s: float, loop_s: float) -> None:
        """How long a turn took, inside the model and outside."""
        self.served.step_times.add(len(step.decoding), model_s + loop_s)
        if self.speculation is not None:
            self.speculation.took(step, model_s, loop_s)
        else:
            self.served.costs.took(step.contents, model_s, loop_s)


def _pages(runner: ModelRunner, settings: Settings) -> RowPages:
    """Returns the pages of a runner's rows, none of which is held."""
    rows, layout = runner.max_rows, runner.layout
    if not layout.is_bound:
        return RowPages(runner, layout, rows, "all" if settings.prefix_reuse else "nothing")
    reuse: Reuse = "prompts" if settings.prefix_reuse else "nothing"
    chunks = ChunkMemory(runner, settings.prefill_chunk_tokens)
    return BoundRowPages(chunks, chunks.layout, rows, reuse)
