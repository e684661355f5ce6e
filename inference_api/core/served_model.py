"""The description of a model that request threads use, whether or not its weights are loaded."""

from dataclasses import dataclass, field
from typing import Self

from inference_api.core.draft_depths import DraftDepths
from inference_api.core.step_costs import StepCosts
from inference_api.loading.generation_config import NO_DEFAULTS, Defaults
from inference_api.runner import ModelRunner, RunnerFacts
from inference_api.text.constraints import GrammarCompiler
from inference_api.text.prompt_encoder import ByteBudget, PromptEncoder
from inference_api.text.tokens import Tokenizer


@dataclass(slots=True)
class StepTotals:
    """Sums over all steps since start: tokens, and seconds inside and outside the model."""

    steps: int = 0
    pauses: int = 0  # pauses of rows because pages ran out
    prefilled_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens that needed no prefill
    disk_tokens: int = 0  # tokens of prompts that were read from disk
    generated_tokens: int = 0
    model_s: float = 0.0  # inside ModelRunner.step
    loop_s: float = 0.0  # the rest of each step
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # drafted tokens that were accepted

    @property
    def looked_for_tokens(self) -> int:
        """Prompt tokens that were looked for in the cache."""
        return self.prefilled_tokens + self.reused_tokens


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as request threads see it, loaded or not. Any thread may read it. The decode thread
    updates `totals`, `depths` and `costs`, which survive unloading."""

    name: str
    tokenizer: Tokenizer
    prompt_encoder: PromptEncoder
    grammars: GrammarCompiler
    max_seq_len: int
    max_rows: int
    is_batch_invariant: bool
    chunk_tokens: int  # see `ModelRunner`
    vocab_size: int
    hidden_size: int  # 0 if steps return no hidden states
    costs: StepCosts
    facts: RunnerFacts | None
    draft_sources: tuple[str, ...] = ()  # names, as in `Speculation`
    sampling_defaults: Defaults = field(default_factory=dict)
    totals: StepTotals = field(default_factory=StepTotals)
    depths: DraftDepths = field(default_factory=DraftDepths)

    @classmethod
    def of(
        cls,
        name: str,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        draft_sources: tuple[str, ...] = (),
        prompt_budget: ByteBudget | None = None,
        max_guesses: int = 0,
        sampling_defaults: Defaults = NO_DEFAULTS,
    ) -> Self:
        """Returns the description of a runner, loaded or not.

        `prompt_budget` is the budget in bytes that the prompts of all models share. `max_guesses`
        is the most guesses of a row in a step.
        """
        max_rows = runner.max_rows
        return cls(
            name,
            tokenizer,
            PromptEncoder(tokenizer, runner.max_seq_len, prompt_budget),
            GrammarCompiler(tokenizer, runner.vocab_size),
            runner.max_seq_len,
            max_rows,
            runner.is_batch_invariant,
            runner.chunk_tokens,
            runner.vocab_size,
            runner.hidden_size,
            StepCosts({}, max_rows * (1 + max_guesses), max_rows),
            runner.facts,
            draft_sources,
            sampling_defaults,
        )
