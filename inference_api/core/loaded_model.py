"""A model whose weights are in memory, with everything that its steps need.

It belongs to the decode thread, except for `served`, which any thread may use.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from inference_api.core.drafts import Drafting
from inference_api.core.plan import PlannedStep, StepPlanner, chunk_tokens
from inference_api.core.rows import RowTable
from inference_api.core.served_model import ServedModel
from inference_api.core.state.bound_pages import BoundRowPages
from inference_api.core.state.pool import NO_PAGES
from inference_api.core.state.row_pages import RowPages
from inference_api.core.state.stored_pages import READ_WAIT_S
from inference_api.core.status import ModelSnapshot
from inference_api.runner import ModelRunner
from inference_api.settings import Settings


class DraftModel(Protocol):
    """A loaded smaller model that guesses tokens for another one, and the pages of its rows."""

    runner: ModelRunner
    pages: RowPages

    def give_up(self) -> None:
        """Drop all pages, because a row needs them more. The model may guess again later."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A runner with its user rows, planner and draft sources. Models share no rows or prefixes."""

    served: ServedModel
    runner: ModelRunner
    rows: RowTable
    planner: StepPlanner
    drafter: DraftModel | None = None
    speculation: Drafting | None = None

    @property
    def name(self) -> str:
        return self.served.name

    @property
    def all_pages(self) -> Sequence[RowPages]:
        """Returns the pages of its rows, and those of its draft model's rows, if it has one."""
        return [self.rows.pages, *([] if self.drafter is None else [self.drafter.pages])]

    def emptied(self) -> Self:
        """Returns the model with empty rows. The runner is left as it is."""
        return replace(self, rows=RowTable(self.runner.max_rows, self.rows.pages))

    def warm_up(self) -> None:
        """Prepare the device for a fast first request, and learn how long steps take."""
        self.runner.warm_up()
        if self.drafter is not None:
            drafter = self.drafter.runner
            drafter.warm_up()
            drafter.give_back(range(drafter.layout.num_pages))
        self.served.costs.measure(self.runner)
        self.served.costs.measure_prompt(self.runner)
        self.runner.give_back(range(self.runner.layout.num_pages))

    def idle(self) -> None:
        """Called while no row has work."""
        if self.runner.idle():
            self.rows.pages.forget_cached()

    def write_pages(self) -> bool:
        """Write some of the pages that ended rows have left to disk, count the tokens read from
        disk, and prepare memory for further reads. Returns whether to call it again soon."""
        disk = self.rows.pages.disk
        if disk is None:
            return False
        self.served.totals.disk_tokens += disk.take_read_tokens()
        has_more = disk.write()
        return disk.prepare() or has_more

    def wait_for_pages(self) -> None:
        """Wait briefly for pages that are being read. Called if no model has a step."""
        if (disk := self.rows.pages.disk) is not None:
            disk.settle(READ_WAIT_S)

    def flush_pages(self, seconds: float) -> None:
        """Write the pages that ended rows have left to disk, for at most `seconds`."""
        if (disk := self.rows.pages.disk) is not None:
            disk.flush(seconds)

    def close(self) -> None:
        """Release the model. Called once, after the last step and `flush_pages` of all models."""
        if (disk := self.rows.pages.disk) is not None:
            disk.close()
        self.runner.close()

    def decode(self, clock: Callable[[], float]) -> PlannedStep:
        """Run the next step, and draft for the step after it. Returns the step, which is empty if
        no row has work."""
        rows, runner, totals = self.rows, self.runner, self.served.totals
        step = self.planner.plan()
        totals.pauses += rows.take_pauses()
        totals.reused_tokens += step.reused_tokens
        if step.is_empty:
            return step
        started_s = clock()
        results = runner.step(step.rows)
        step.model_s = clock() - started_s
        step.accept(results)
        for drafted, accepted in step.kept:
            runner.keep(drafted, accepted)
        for row, _ in step.prompts:
            rows.seal(row)
        if runner.layout.has_windows:
            for row, decoded in step.decoding:
                rows.went_on(row, decoded.start)
        self._count_tokens(step)
        if self.speculation is not None:
            self.speculation.learn(step.outcomes)
        self.planner.draft()
        return step

    def _count_tokens(self, step: PlannedStep) -> None:
        totals, events = self.served.totals, [event for _, event in step.events]
        totals.generated_tokens += sum([len(event.token_ids) or 1 for event in events])
        totals.prefilled_tokens += sum([len(each.token_ids) for _, each in step.prompts])
        totals.drafts += len(step.kept)
        for event in events if step.kept else ():
            if event.drafted_tokens:
                totals.drafted_tokens += event.drafted_tokens
                totals.accepted_tokens += event.accepted_tokens
                self.served.depths.add(event.drafted_tokens, event.accepted_tokens)

    def learn_turn(self, step: PlannedStep, model_s: float, loop_s: float) -> None:
        """Learn how many seconds a turn took in the model, and in the rest of the loop."""
        totals = self.served.totals
        totals.steps += 1
        totals.model_s += model_s
        totals.loop_s += loop_s
        if self.speculation is not None:
            self.speculation.learn_turn(step, model_s, loop_s)
        else:
            self.served.costs.learn_turn(step.contents, model_s, loop_s)


def snapshot_of(served: ServedModel, models: Mapping[str, LoadedModel]) -> ModelSnapshot:
    """Returns a model's state. `models` are those in memory; others have no rows and pages."""
    model, totals = models.get(served.name), replace(served.totals)
    if model is None:
        return ModelSnapshot(totals=totals, depths=served.depths.copy())
    rows = model.rows
    pages, draft_pages = [*(each.counts for each in model.all_pages), NO_PAGES][:2]
    depths = served.depths.copy()
    return ModelSnapshot(len(rows), len(rows.paused), pages, draft_pages, totals, depths)


def row_pages(runner: ModelRunner, settings: Settings) -> RowPages:
    """Returns the page tables of a runner's rows, all empty."""
    rows, reuses = runner.max_rows, settings.prefix_reuse
    if runner.layout.is_bound:
        return BoundRowPages(runner, rows, reuses, chunk_tokens(settings, runner))
    return RowPages(runner, rows, reuses, runner.max_seq_len)
