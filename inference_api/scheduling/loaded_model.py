"""A model whose weights are in memory: everything that steps of it need, as one value.

It belongs to the decode thread, but for `served`, which is for any.
"""

from dataclasses import dataclass
from typing import Self

from inference_api.engine.runner import ModelRunner
from inference_api.errors import StartupError
from inference_api.scheduling.rows import RowTable
from inference_api.scheduling.served_model import ServedModel
from inference_api.scheduling.speculation.draft_model import ModelDrafts
from inference_api.scheduling.speculation.drafts import DraftSource
from inference_api.scheduling.speculation.medusa import MedusaDrafts
from inference_api.scheduling.speculation.ngram import NgramDrafts
from inference_api.scheduling.speculation.scheduler import DraftScheduler
from inference_api.scheduling.step_plan import Step, StepPlanner
from inference_api.settings import ModelSettings, Settings
from inference_api.text.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Its rows are its own, and so are the prefixes that they hold."""

    served: ServedModel
    runner: ModelRunner
    rows: RowTable
    planner: StepPlanner
    drafter: ModelRunner | None = None  # a smaller model that guesses for `runner`
    speculation: DraftScheduler | None = None

    @property
    def name(self) -> str:
        return self.served.name

    @classmethod
    def of(cls, name: str, runner: ModelRunner, tokenizer: Tokenizer, settings: Settings) -> Self:
        """Makes one of a runner that has no heads and no draft model."""
        of_model = settings.of_model(name)
        sources = draft_sources(name, runner, of_model)
        max_guesses = of_model.speculation_tokens if sources else 0
        served = ServedModel.of(name, runner, tokenizer, sources, max_guesses=max_guesses)
        return cls.serving(served, runner, settings)

    @classmethod
    def serving(
        cls,
        served: ServedModel,
        runner: ModelRunner,
        settings: Settings,
        drafter: ModelRunner | None = None,
    ) -> Self:
        """Makes one of loaded runners, with empty rows."""
        rows = RowTable(runner.max_rows, _reuse_unit_tokens(runner, settings))
        speculation = _speculation(served, runner, settings.of_model(served.name), drafter)
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

    @property
    def kv_cache_usage(self) -> float:
        """The share of the cache that busy rows hold tokens in. Any thread."""
        busy_tokens, _ = self.rows.cached_tokens()
        return busy_tokens / (self.runner.max_rows * self.runner.max_seq_len)

    def idle(self) -> None:
        """While none of its rows has work."""
        if self.runner.idle():
            for row in self.rows.holding():
                self.rows.forget(row)

    def took(self, step: Step, model_s: float, loop_s: float) -> None:
        """How long a turn took, inside the model and outside."""
        self.served.step_times.add(len(step.decoding), model_s + loop_s)
        if self.speculation is not None:
            self.speculation.took(step, model_s, loop_s)
        else:
            self.served.costs.took(step.contents, model_s, loop_s)


def draft_sources(
    name: str,
    runner: ModelRunner,
    settings: ModelSettings,
    drafter: ModelRunner | None = None,
) -> tuple[str, ...]:
    """Names of who guesses for a runner, loaded or not; those that take least time first.

    Raises StartupError where the one that is asked for is not there.
    """
    mode = settings.speculation
    if mode == "off":
        return ()
    if mode == "draft" and drafter is None:
        raise StartupError(
            [
                f"SPECULATION=draft, but {name} has no draft model; name a small one of the same "
                "vocabulary in DRAFT_MODEL, or set SPECULATION=auto."
            ]
        )
    if mode == "medusa" and not runner.has_medusa_heads:
        raise StartupError(
            [
                f"SPECULATION=medusa, but {name} has no Medusa heads; name their folder in "
                "MEDUSA_HEADS, train some with scripts/train_medusa.py, or set SPECULATION=auto."
            ]
        )
    there = {
        NgramDrafts.name: mode in ("auto", "ngram"),
        MedusaDrafts.name: runner.has_medusa_heads,
        ModelDrafts.name: drafter is not None,
    }
    return tuple(source for source, is_there in there.items() if is_there)


def _speculation(
    served: ServedModel,
    runner: ModelRunner,
    settings: ModelSettings,
    drafter: ModelRunner | None,
) -> DraftScheduler | None:
    sources: list[DraftSource] = []
    max_tokens = settings.speculation_tokens
    for source in served.draft_sources:
        if source == NgramDrafts.name:
            sources.append(NgramDrafts(max_tokens))
        elif source == MedusaDrafts.name:
            assert runner.medusa is not None
            sources.append(MedusaDrafts(runner.medusa, max_tokens))
        else:
            assert drafter is not None
            sources.append(ModelDrafts(drafter, max_tokens, runner.vocab_size))
    if not sources:
        return None
    tries_all = settings.speculation != "auto"
    return DraftScheduler(sources, max_tokens, runner.max_rows, tries_all, costs=served.costs)


def _reuse_unit_tokens(runner: ModelRunner, settings: Settings) -> int:
    if not settings.prefix_reuse:
        return 0
    return 1 if runner.is_batch_invariant else settings.prefill_chunk_tokens
