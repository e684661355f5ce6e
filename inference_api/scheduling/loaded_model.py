"""A model that serves: everything that is one model's, as one value.

`runner`, `rows`, `planner`, `totals` and `depths` belong to the decode thread; the rest is for any
thread.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from inference_api.engine.options import EngineOptions
from inference_api.engine.runner import DraftHeads, ModelRunner
from inference_api.errors import StartupError
from inference_api.observe.draft_depths import DraftDepths
from inference_api.scheduling.rows import RowTable
from inference_api.scheduling.speculation.draft_model import ModelDrafts
from inference_api.scheduling.speculation.drafts import DraftSource
from inference_api.scheduling.speculation.medusa import MedusaDrafts
from inference_api.scheduling.speculation.ngram import NgramDrafts
from inference_api.scheduling.speculation.scheduler import DraftScheduler
from inference_api.scheduling.step_plan import StepPlanner
from inference_api.settings import ModelSettings, Settings
from inference_api.text.constraints import GrammarCompiler
from inference_api.text.prompt_encoder import MAX_BYTES_AT_ONCE, WAIT_S, ByteBudget, PromptEncoder
from inference_api.text.tokens import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from inference_api.engine.engine_runner import EngineRunner
    from inference_api.kernels.library import Kernels

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepTotals:
    """Sums over all steps since start: what they made and where their time went."""

    steps: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens that needed no prefill
    generated_tokens: int = 0
    model_s: float = 0.0  # inside ModelRunner.step
    loop_s: float = 0.0  # the rest of each step
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of those that were drafted


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Its rows are its own, and so are the prefixes that they hold."""

    name: str
    runner: ModelRunner
    tokenizer: Tokenizer
    prompt_encoder: PromptEncoder
    grammars: GrammarCompiler
    rows: RowTable
    planner: StepPlanner
    drafter: ModelRunner | None = None  # a smaller model that guesses for `runner`
    speculation: DraftScheduler | None = None
    totals: StepTotals = field(default_factory=StepTotals)
    depths: DraftDepths = field(default_factory=DraftDepths)

    @classmethod
    def of(
        cls,
        name: str,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        settings: Settings,
        prompt_budget: ByteBudget | None = None,
        heads: DraftHeads | None = None,
        drafter: ModelRunner | None = None,
    ) -> Self:
        """Makes one of a loaded runner. `prompt_budget`: bytes that prompts of all models share;
        `heads` and `drafter`, where there are some, guess for the runner."""
        rows = RowTable(runner.max_rows, _reuse_unit_tokens(runner, settings))
        speculation = _speculation(name, runner, settings.of_model(name), heads, drafter)
        return cls(
            name,
            runner,
            tokenizer,
            PromptEncoder(tokenizer, runner.max_seq_len, prompt_budget),
            GrammarCompiler(tokenizer, runner.vocab_size),
            rows,
            StepPlanner(rows, runner, settings, speculation),
            drafter,
            speculation,
        )

    def warm_up(self) -> None:
        """Prepare the device, so that the first request is as fast as the next."""
        self.runner.warm_up()
        if self.drafter is not None:
            self.drafter.warm_up()
        if self.speculation is not None:
            self.speculation.warm_up(self.runner)

    @property
    def draft_sources(self) -> tuple[str, ...]:
        """Names of who may guess; see `Speculation`."""
        if self.speculation is None:
            return ()
        return tuple(source.name for source in self.speculation.sources)


def load_models(settings: Settings) -> list[LoadedModel]:
    """Bring all models into memory, once it is known that all fit. Imports torch.

    They step one after another, so those of one number of threads share the kernels' threads.
    Raises StartupError.
    """
    from inference_api.engine.engine_runner import EngineRunner, check_memory
    from inference_api.engine.loading.checkpoint import locate
    from inference_api.kernels.library import Kernels

    kernels_of = cache(Kernels)
    runners: dict[str, EngineRunner] = {}
    drafters: dict[str, EngineRunner] = {}
    tokenizers: dict[str, Tokenizer] = {}
    for model in settings.served_models:
        folder = locate(model.model)
        runner = EngineRunner(folder, EngineOptions.from_settings(model), kernels_of)
        tokenizers[model.name] = load_tokenizer(folder, runner.eos_token_ids)  # quicker to fail
        runners[model.name] = runner
        if model.used_draft_model is not None:
            drafters[model.name] = _drafter(model, folder, runner.max_seq_len, kernels_of)
    check_memory({**runners, **{f"{name}'s draft model": each for name, each in drafters.items()}})
    budget = ByteBudget(MAX_BYTES_AT_ONCE, WAIT_S)
    models = []
    for name, runner in runners.items():
        runner.load()
        drafter = drafters.get(name) if runner.is_batch_invariant else None
        if drafter is not None:
            drafter.load()
        made = (tokenizers[name], settings, budget, runner.medusa, drafter)
        models.append(LoadedModel.of(name, runner, *made))
    return models


def _drafter(
    model: ModelSettings,
    model_dir: Path,
    max_seq_len: int,
    kernels_of: "Callable[[int], Kernels]",
) -> "EngineRunner":
    """Of DRAFT_MODEL, to be loaded: with as many rows as the model, and its context or as much of
    it as the draft has. Raises StartupError when it cannot draft for this model."""
    from inference_api.engine.engine_runner import EngineRunner
    from inference_api.engine.loading.checkpoint import load_config, locate, vocabulary_faults

    assert model.used_draft_model is not None
    folder = locate(model.used_draft_model, setting="DRAFT_MODEL")
    if faults := vocabulary_faults(model_dir, folder):
        raise StartupError(faults)
    context_tokens = min(max_seq_len, load_config(folder).max_positions)
    options = replace(
        EngineOptions.from_settings(model), max_seq_len=context_tokens, has_medusa=False
    )
    return EngineRunner(folder, options, kernels_of)


def _reuse_unit_tokens(runner: ModelRunner, settings: Settings) -> int:
    if not settings.prefix_reuse:
        return 0
    return 1 if runner.is_batch_invariant else settings.prefill_chunk_tokens


def _speculation(
    name: str,
    runner: ModelRunner,
    settings: ModelSettings,
    heads: DraftHeads | None,
    drafter: ModelRunner | None,
) -> DraftScheduler | None:
    """Speculation changes no answer, so that a runner has to be exact whatever is drafted."""
    mode, max_tokens = settings.speculation, settings.speculation_tokens
    if mode == "off":
        return None
    if not runner.is_batch_invariant:
        logger.warning(
            "SPECULATION=%s is ignored for %s, which the kernels do not decode: several tokens of "
            "a step might be drawn otherwise than one by one",
            mode,
            name,
        )
        return None
    if drafter is not None and not drafter.is_batch_invariant:
        logger.warning("DRAFT_MODEL of %s is ignored: the kernels do not decode it", name)
        if mode == "draft":
            return None
        drafter = None
    if mode == "draft" and drafter is None:
        raise StartupError(
            [
                f"SPECULATION=draft, but {name} has no draft model; name a small one of the same "
                "vocabulary in DRAFT_MODEL, or set SPECULATION=auto."
            ]
        )
    if mode == "medusa" and heads is None:
        raise StartupError(
            [
                f"SPECULATION=medusa, but {name} has no Medusa heads; name their folder in "
                "MEDUSA_HEADS, train some with scripts/train_medusa.py, or set SPECULATION=auto."
            ]
        )
    sources: list[DraftSource] = []
    if mode in ("auto", "ngram"):
        sources.append(NgramDrafts(max_tokens))
    if heads is not None:
        sources.append(MedusaDrafts(heads, max_tokens))
    if drafter is not None:
        sources.append(ModelDrafts(drafter, max_tokens, runner.vocab_size))
    return DraftScheduler(sources, max_tokens, runner.max_rows, tries_all=mode != "auto")
