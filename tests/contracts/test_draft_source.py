"""What the decode loop may rely on, true of every DraftSource.

A source joins by a factory in `SOURCES`: it gets the model's runner and one of a random model of
the same vocabulary, both loaded.
"""

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaForCausalLM

from inference_api.core.drafts import DraftSource, Outcome
from inference_api.core.plan import StepPlanner
from inference_api.core.rows import Draft, RowTable, UserRow
from inference_api.core.state.row_pages import RowPages
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.options import EngineOptions
from inference_api.request import (
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SamplingParams,
    SessionId,
)
from inference_api.settings import EMBEDDED_MODEL, Settings
from inference_api.settings.model import Speculation
from inference_api.speculation.draft_model import ModelDrafts
from inference_api.speculation.medusa import MedusaDrafts
from inference_api.speculation.mtp import MtpDrafts
from inference_api.speculation.ngram import NgramDrafts
from inference_api.speculation.scheduler import DraftScheduler
from inference_api.text.tokens import load_tokenizer

ROWS = 4
CONTEXT = 96
MAX_TOKENS = 5
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=11)
TEXTS = (
    "Echo this text: Jonas went to Nashville.",
    "The quick brown fox sees the lazy dog. The quick brown fox sees the lazy",
    "Tell me a story about a fox and a baker.",
    "a",
    "one two one two one two one",
)
Sources = Callable[[KernelRunner, KernelRunner], DraftSource]


def medusa(runner: KernelRunner, _: KernelRunner) -> DraftSource:
    assert runner.medusa is not None
    return MedusaDrafts(runner.medusa, MAX_TOKENS)


def mtp(runner: KernelRunner, _: KernelRunner) -> DraftSource:
    assert runner.mtp is not None
    return MtpDrafts(runner.mtp, MAX_TOKENS, runner.vocab_size)


def own_draft(runner: KernelRunner, _: KernelRunner) -> DraftSource:
    """The model for itself, with a cache of its own."""
    return drafts_of(loaded(EMBEDDED_MODEL), runner.vocab_size)


def squeezed_draft(runner: KernelRunner, _: KernelRunner) -> DraftSource:
    """With pages for the longest row alone."""
    return drafts_of(loaded(EMBEDDED_MODEL), runner.vocab_size, num_pages=3)


def wrong_draft(runner: KernelRunner, other: KernelRunner) -> DraftSource:
    return drafts_of(other, runner.vocab_size)


def drafts_of(drafter: KernelRunner, vocab_size: int, num_pages: int | None = None) -> ModelDrafts:
    pages = RowPages(drafter, ROWS, max_seq_len=CONTEXT)
    pages.limit_to(num_pages or pages.limit)
    return ModelDrafts(drafter, pages, MAX_TOKENS, vocab_size)


def all_together(runner: KernelRunner, other: KernelRunner) -> DraftSource:
    every = [make(runner, other) for make in (ngram, medusa, mtp, own_draft)]
    return DraftScheduler(every, MAX_TOKENS, ROWS, tries_all=True)


def ngram(*_: KernelRunner) -> DraftSource:
    return NgramDrafts(MAX_TOKENS)


SOURCES: Mapping[str, Sources] = {
    "ngram": ngram,
    "medusa": medusa,
    "mtp": mtp,
    "own draft": own_draft,
    "squeezed draft": squeezed_draft,
    "wrong draft": wrong_draft,
    "all": all_together,
}


def loaded(folder: Path, heads: Path | None = None) -> KernelRunner:
    options = EngineOptions(
        device="cpu",
        dtype="float32",
        max_rows=ROWS,
        max_seq_len=CONTEXT,
        quantization="int8",
        has_medusa=heads is not None,
        medusa_heads=None if heads is None else str(heads),
        has_mtp=True,
    )
    runner = KernelRunner(folder, options)
    runner.load()
    return runner


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random ones: their guesses are the model's own next token, more or less."""
    folder = tmp_path_factory.mktemp("heads")
    width = AutoConfig.from_pretrained(EMBEDDED_MODEL).hidden_size
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    for head in range(3):
        weight = 0.02 * torch.randn(width, width, generator=generator)
        tensors |= {f"{head}.0.linear.weight": weight, f"{head}.0.linear.bias": torch.zeros(width)}
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> KernelRunner:
    """A random model of the embedded one's vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    config = AutoConfig.from_pretrained(EMBEDDED_MODEL)
    config.num_hidden_layers = 1
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in EMBEDDED_MODEL.glob("tokenizer*"):
        shutil.copy(file, folder)
    return loaded(folder)


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with its last layer once more, to guess further tokens."""
    folder = tmp_path_factory.mktemp("further")
    shutil.copytree(EMBEDDED_MODEL, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    last = 1 + max(int(name.split(".")[2]) for name in tensors if ".layers." in name)
    before, layer = (f"model.layers.{number}." for number in (last - 1, last))
    for name in [*tensors]:
        if name.startswith(before):
            tensors[name.replace(before, layer)] = tensors[name].clone()
    width = len(tensors["model.norm.weight"])
    half = torch.eye(width) / 2
    tensors[f"{layer}eh_proj.weight"] = torch.cat([half, half], dim=1)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{layer}{name}.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def runner(further: Path, heads: Path) -> KernelRunner:
    return loaded(further, heads)


@pytest.fixture(params=SOURCES)
def source(
    request: pytest.FixtureRequest, runner: KernelRunner, other: KernelRunner
) -> DraftSource:
    return SOURCES[request.param](runner, other)


def requests(count: int, seed: int = 0) -> list[GenerationRequest]:
    """Of several lengths, greedy and seeded, some ended by a token that comes before long."""
    tokenizer = load_tokenizer(EMBEDDED_MODEL, frozenset())
    chosen = random.Random(seed)
    made = []
    for number in range(count):
        prompt = tuple(tokenizer.encode(chosen.choice(TEXTS)))
        stop = frozenset(tokenizer.encode(" the.")) if number % 3 == 2 else frozenset[int]()
        made.append(
            GenerationRequest(
                OutputQueue(SessionId(str(number)), "m"),
                "m",
                prompt,
                GenerationParams(
                    chosen.choice([*range(1, 9), 30, 1000]),
                    sampling=(GREEDY, SEEDED)[number % 2],
                ),
                stop_token_ids=stop,
            )
        )
    return made


class Loop:
    """Rows of a runner, as the decode loop has them."""

    def __init__(self, runner: KernelRunner, source: DraftSource | None) -> None:
        self.runner, self.source = runner, source
        self.rows = RowTable(ROWS, RowPages(runner, ROWS))
        settings = Settings(user_rows=ROWS, max_seq_len=CONTEXT, prefill_chunk_tokens=16)
        self.planner = StepPlanner(self.rows, runner, settings, source)
        self.num_tried = self.num_accepted = 0
        self.said: dict[str, list[int]] = {}

    def step(self) -> None:
        step = self.planner.plan()
        step.accept(self.runner.step(step.rows))
        for drafted, kept in step.kept:
            self.runner.keep(drafted, kept)
        for row, _ in step.prompts:
            self.rows.seal(row)
        if self.source is not None:
            self.source.learn(step.outcomes)
        self.planner.draft()
        for drafted, kept in step.kept:
            self.num_tried += len(drafted.token_ids) - 1
            self.num_accepted += len(kept) - 1
        for row in self.rows.busy():
            if row.finish_reason is not None:
                self.said[row.request.output.session_id] = row.generated
                self.rows.free(row)

    def run(self, waiting: Sequence[GenerationRequest], hang_up_after: int = 0) -> "Loop":
        """Until all are done; of every fifth only so many steps, where that is said."""
        queue, age = list(waiting), dict[str, int]()
        while queue or len(self.rows):
            while queue and len(self.rows) < len(self.rows.users):
                self.rows.assign(queue.pop(0), CONTEXT, float(-len(queue)))
            self.step()
            for row in self.rows.busy():
                session_id = row.request.output.session_id
                age[session_id] = age.get(session_id, 0) + 1
                is_fifth = int(session_id) % 5 == 4
                if hang_up_after and is_fifth and age[session_id] > hang_up_after:
                    self.rows.free(row)
        return self


def test_answers_are_those_without_it(runner: KernelRunner, source: DraftSource) -> None:
    """More requests than rows, so that each row is many's; some hang up."""
    asked = requests(24)
    plain = Loop(runner, None).run(asked).said
    drafted = Loop(runner, source).run(asked, hang_up_after=4)
    assert len(drafted.said) >= 19
    assert drafted.said == {number: plain[number] for number in drafted.said}
    assert drafted.num_tried > 0
    if isinstance(source, ModelDrafts):
        pages = source.pages
        assert pages.counts.held == 0
        pages.forget_cached()
        assert pages.counts.free == pages.limit


class Checked:
    """A source whose every proposal is looked at."""

    def __init__(self, source: DraftSource) -> None:
        self.source = source
        self.name, self.wants_hidden = source.name, source.wants_hidden
        self.num_drafts = 0

    def propose(self, rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        drafts = self.source.propose(rows)
        assert drafts.keys() <= {row.index for row in rows}
        for draft in drafts.values():
            self._check(draft)
        self.num_drafts += len(drafts)
        return drafts

    def _check(self, draft: Draft) -> None:
        count = len(draft.token_ids)
        assert 0 < count <= MAX_TOKENS
        assert len(draft.likelihoods) == count
        assert all(0 < each <= 1 for each in draft.likelihoods)
        assert all(later <= earlier for earlier, later in pairwise(draft.likelihoods))
        if draft.parents is not None:
            assert len(draft.parents) == count
            assert all(-1 <= parent < at for at, parent in enumerate(draft.parents))
            siblings = list(zip(draft.parents, draft.token_ids, strict=True))
            assert len(set(siblings)) == count

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        self.source.learn(outcomes)


def test_proposals_are_trees_in_falling_likelihood(
    runner: KernelRunner, source: DraftSource
) -> None:
    checked = Checked(source)
    Loop(runner, checked).run(requests(12, seed=1))
    assert checked.num_drafts > 0


@pytest.mark.parametrize("wanted", ["off", "ngram", "medusa", "mtp", "draft"])
def test_request_is_guessed_for_by_whom_it_names(
    runner: KernelRunner, other: KernelRunner, wanted: Speculation
) -> None:
    asked: list[str] = []
    sources = [make(runner, other) for make in (ngram, medusa, mtp, own_draft)]
    for source in sources:
        _note(source, asked)
    loop = Loop(runner, DraftScheduler(sources, MAX_TOKENS, ROWS, tries_all=True))
    prompt = tuple(load_tokenizer(EMBEDDED_MODEL, frozenset()).encode(TEXTS[0]))
    output = OutputQueue(SessionId("0"), "m")
    params = GenerationParams(12, sampling=GREEDY, speculation=wanted)
    loop.run([GenerationRequest(output, "m", prompt, params)])
    assert set(asked) == ({wanted} - {"off"})
    assert (loop.num_tried > 0) == (wanted != "off")


def _note(source: DraftSource, asked: list[str]) -> None:
    propose = source.propose

    def noting(rows: Sequence[UserRow]) -> Mapping[int, Draft]:
        if rows:
            asked.append(source.name)
        return propose(rows)

    source.propose = noting  # type: ignore[method-assign]


def test_model_is_nearly_always_right_about_itself(runner: KernelRunner) -> None:
    source = own_draft(runner, runner)
    loop = Loop(runner, source).run(
        [each for each in requests(16) if each.params.sampling is GREEDY]
    )
    assert loop.num_tried > 20
    assert loop.num_accepted > 0.6 * loop.num_tried


def test_wrong_model_learns_to_guess_little(runner: KernelRunner, other: KernelRunner) -> None:
    loop = Loop(runner, wrong_draft(runner, other)).run(requests(40))
    num_tokens = sum(map(len, loop.said.values()))
    assert loop.num_accepted < 0.2 * loop.num_tried
    assert loop.num_tried < 1.5 * num_tokens
