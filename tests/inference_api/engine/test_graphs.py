"""Steps of fixed shape, launched and recorded: of rows, of drafts, and of prompts.

Where there is no CUDA, make_fx records in the graph's place. Its recording keeps the host's values
of the moment too: what a step looked at on the host shows when it runs for other rows.
"""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from annotated_types import Le
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from inference_api.engine.cuda import decoder as decoder_module
from inference_api.engine.cuda.decoder import Decoder, capped
from inference_api.engine.cuda.draws import plan_of
from inference_api.engine.cuda.graphs import Forward, Step, capturing, step_lengths
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.cuda.sampler import sample
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import MAX_TREE_TOKENS, Draw, RowStep
from inference_api.settings import ModelSettings
from tests.inference_api.conftest import MAX_ROWS, Tiny
from tests.inference_api.engine import steps
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.engine.test_decoder import random_prompt
from tests.inference_api.engine.tiny_models import CONTEXT, VOCAB_SIZE

LENGTHS = (16, 48, CONTEXT)  # several, so that rows of one step have several
# Models whose layers compute what no other's here do; the rest differ from one of them in numbers.
LAUNCHED = (
    "llama", "qwen2-windows", "qwen3", "gemma3-capped", "gpt-oss", "glm4", "glm4-moe", "olmo3",
    "deepseek-v2", "deepseek-v3", "ministral3", "phi3-long-rope", "falcon-7b", "falcon-11b",
)  # fmt: skip
RECORDED = ("llama", "qwen2-windows")  # which takes a second each


class Decoders(NamedTuple):
    """One as it was asked for, launched or recorded, and one that is launched, over one cache."""

    decoder: Decoder
    launched: Decoder
    cache: TorchCache

    def read(self, row: int, prompt: Sequence[int]) -> Tensor:
        """Logits of each of a row's tokens when they are computed as a prompt."""
        states = states_of(self.launched, row, 0, prompt).to(self.cache.entries.dtype)
        return capped(self.launched._head(states), self.launched._config)


Make = Callable[..., Decoders]


def recorded(forward: Forward, inputs: Tensor) -> Step:
    with tracing(TracingContext(FakeTensorMode())):  # else each operation makes such a mode
        return partial(make_fx(forward)(inputs), inputs)


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def decoders(tiny_model: Tiny, device: str) -> Make:
    """By model name, whether steps are recorded, and precision, each made once per device."""

    @cache
    def make(name: str, is_recorded: bool, dtype: str) -> Decoders:
        options = EngineOptions(device=device, dtype=dtype, max_rows=MAX_ROWS, max_seq_len=CONTEXT)
        runner = CudaRunner(tiny_model(name), options)
        runner.load()
        launched = runner.decoder
        launched.prepare(LENGTHS)
        if not is_recorded:
            return Decoders(launched, launched, runner._cache)
        decoder = copy(launched)
        decoder.prepare(LENGTHS[1:])
        record = capturing() if device == "cuda" else recorded
        made: list[Step] = []

        def counted(forward: Forward, inputs: Tensor) -> Step:
            made.append(record(forward, inputs))
            return made[-1]

        with torch.inference_mode():
            decoder.record(counted)
        # Tokens and 64 of a prompt at both lengths, 256 at the longer one.
        assert len(made) == 5, "a recording failed"
        return Decoders(decoder, launched, runner._cache)

    return lambda name, is_recorded, dtype="float32": make(name, is_recorded, dtype)


def fill(decoder: Decoder, prompts: Mapping[int, Sequence[int]]) -> None:
    """Prefill all but the last token of each row's prompt."""
    for row, prompt in prompts.items():
        if len(prompt) > 1:
            steps.prefill(decoder, row, 0, prompt[:-1])


def decode(decoder: Decoder, prompts: Mapping[int, Sequence[int]]) -> Tensor:
    """Logits for what follows the last token of each row's prompt."""
    return steps.decode(
        decoder,
        [prompt[-1] for prompt in prompts.values()],
        list(prompts),
        [len(prompt) - 1 for prompt in prompts.values()],
    )


def random_prompts(seed: int, num_rows: int) -> dict[int, list[int]]:
    """Some of them as long as a step reads, or longer by one."""
    rng = random.Random(seed)
    prompts = {row: random_prompt(rng) for row in rng.sample(range(MAX_ROWS), num_rows)}
    edges = [1, *LENGTHS[:2], LENGTHS[0] + 1, CONTEXT]
    for row, num_tokens in zip(list(prompts), edges, strict=False):
        prompts[row] = rng.choices(range(VOCAB_SIZE), k=num_tokens)
    return prompts


def held(kv_cache: TorchCache) -> Tensor:
    """Keys and values of all positions that there may be."""
    return kv_cache.entries[..., :CONTEXT, :]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "is_recorded"),
    [*((name, False) for name in LAUNCHED), *((name, True) for name in RECORDED)],
)
def test_logits_and_caches_equal_those_of_prompts(
    name: str, is_recorded: bool, decoders: Make
) -> None:
    every = decoders(name, is_recorded)
    for num_rows in (9, 1):
        prompts = random_prompts(num_rows, num_rows)
        fill(every.launched, prompts)
        actual = decode(every.decoder, prompts)
        kept = every.cache.entries.clone()
        for (row, prompt), logits in zip(prompts.items(), actual, strict=True):
            assert_close(logits, every.read(row, prompt)[-1])
            written = slice(len(prompt))
            assert_close(kept[:, row, :, :, written], every.cache.entries[:, row, :, :, written])


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("name", RECORDED)
def test_logits_are_the_same_bits_alone_and_beside_others_in_any_row(
    name: str, is_recorded: bool, decoders: Make
) -> None:
    decoder, launched, _ = decoders(name, is_recorded)
    prompts = random_prompts(5, MAX_ROWS)
    fill(launched, prompts)
    together = dict(zip(prompts, decode(decoder, prompts), strict=True))
    rows = list(prompts)[:7]
    for row in rows:
        assert torch.equal(decode(decoder, {row: prompts[row]})[0], together[row])
    for row in rows:
        other_row = {(row + 1) % MAX_ROWS: prompts[row]}
        fill(launched, other_row)
        assert torch.equal(decode(decoder, other_row)[0], together[row])


def test_bfloat16_rows_are_the_same_bits_alone_and_beside_others(decoders: Make) -> None:
    every = decoders("llama", False, "bfloat16")
    prompts = random_prompts(4, 8)
    fill(every.launched, prompts)
    together = decode(every.decoder, prompts)
    for logits, (row, prompt) in zip(together, prompts.items(), strict=True):
        assert torch.equal(decode(every.decoder, {row: prompt})[0], logits)
        assert torch.cosine_similarity(logits, every.read(row, prompt)[-1], 0) > 0.999


@pytest.mark.parametrize(
    ("name", "is_recorded"),
    [*((name, False) for name in LAUNCHED), *((name, True) for name in RECORDED)],
)
def test_chunks_of_prompts_write_what_their_tokens_write_as_drafts(
    name: str, is_recorded: bool, decoders: Make
) -> None:
    """Of one token and of as many as a step has or one more, from the middle of a row to the end of
    the context; nothing else changes, and their states are the same."""
    decoder, launched, kv_cache = decoders(name, is_recorded)
    rng = random.Random(13)
    for start, num_tokens in [(0, 1), (0, 9), (3, 64), (5, 65), (CONTEXT - 20, 20), (0, CONTEXT)]:
        before = rng.choices(range(VOCAB_SIZE), k=start)
        if before:
            steps.prefill(launched, 6, 0, before)
        before_it = held(kv_cache).clone()
        chunk = RowStep(6, start, rng.choices(range(VOCAB_SIZE), k=num_tokens), wants_hidden=True)
        outputs = decoder.forward([chunk])
        assert outputs.logits.shape == (0, VOCAB_SIZE)
        written = slice(start, start + num_tokens)
        kept = held(kv_cache)[:, 6, :, :, written].clone()
        before_it[:, 6, :, :, written] = kept
        assert torch.equal(held(kv_cache), before_it)
        expected = launched.forward([replace(chunk, draws=[ANY_DRAW] * num_tokens)])
        assert_close(of_only(outputs.hidden), of_only(expected.hidden))
        assert_close(kept, held(kv_cache)[:, 6, :, :, written])


def test_a_long_chunk_is_cut_as_if_its_parts_had_come_one_by_one(
    decoders: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, launched, _ = decoders("llama", False)
    tokens = random.Random(1).choices(range(VOCAB_SIZE), k=99)
    expected = states_of(launched, 4, 0, tokens)
    monkeypatch.setattr(decoder_module, "PROMPT_SIZES", {8: 1, 16: 9, 32: 32})
    decoder = copy(launched)
    decoder.prepare(LENGTHS)
    whole = states_of(decoder, 2, 0, tokens)
    parts = [
        states_of(decoder, 3, begin, tokens[begin:end])
        for begin, end in pairwise([0, 32, 64, 96, 99])
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert_close(whole, expected)


def states_of(decoder: Decoder, row: int, start: int, prompt: Sequence[int]) -> Tensor:
    return of_only(decoder.forward([RowStep(row, start, prompt, wants_hidden=True)]).hidden)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_caches_of_absent_rows_are_left_alone(is_recorded: bool, decoders: Make) -> None:
    decoder, launched, kv_cache = decoders("llama", is_recorded)
    fill(launched, random_prompts(6, MAX_ROWS))
    before = held(kv_cache).clone()
    decode(decoder, {3: [5] * 20})
    now = held(kv_cache)
    assert not torch.equal(now[:, 3, :, :, 19], before[:, 3, :, :, 19])
    before[:, 3, :, :, 19] = now[:, 3, :, :, 19]
    assert torch.equal(now, before)


# A row's token and drafts behind it: a chain, and trees with branches of several depths.
CHAIN = tuple(range(-1, 13))
TREES = (
    (-1, 0, 0, 0, 2, 1, 2, 4, 4, 6, 7, 10, 11, 11),
    (-1, 0, 1, 2, 0, 4, 5, 6, 7, 8, 9, 0, 11, 12),
)
LONGEST_TREE = (-1, 0, 0, *range(2, MAX_TREE_TOKENS - 1))


@pytest.mark.parametrize(
    ("name", "way", "dtype"),
    [
        *((name, "launched", "float32") for name in LAUNCHED),
        *((name, "recorded", "float32") for name in RECORDED),
        ("llama", "launched", "bfloat16"),
    ],
)
def test_drafted_tokens_have_the_bits_that_they_have_one_by_one(
    name: str, way: str, dtype: str, decoders: Make
) -> None:
    """In steps of more tokens than there are rows, across lengths, beside a row of one token. How
    long a tree may be is nothing that layers differ in."""
    decoder, launched, _ = decoders(name, way == "recorded", dtype)
    rng = random.Random(7)
    asked = [(3, LENGTHS[0] - 5, CHAIN), (9, LENGTHS[1] - 3, TREES[0]), (4, 0, TREES[1][:6])]
    asked.append((7, CONTEXT - 1, (-1,)))
    if name == RECORDED[0]:
        asked += [(1, 0, TREES[1]), (0, CONTEXT - 14, CHAIN)]
        asked += [(5, 6, LONGEST_TREE), (2, CONTEXT - MAX_TREE_TOKENS, LONGEST_TREE)]
    rows = [draft(rng, row, start, parents) for row, start, parents in asked]
    prompts = {each.row: rng.choices(range(VOCAB_SIZE), k=each.start) for each in rows}
    for row, prompt in prompts.items():
        if prompt:
            steps.prefill(launched, row, 0, prompt)
    assert_bits_of_one_by_one(decoder, rows)


def assert_bits_of_one_by_one(decoder: Decoder, rows: Sequence[RowStep]) -> None:
    logits, hidden = decoder.forward(rows)
    drawn = logits.clone().split([len(each.token_ids) for each in rows])
    for each, own_logits, own_states in zip(rows, drawn, hidden, strict=True):
        assert own_states is not None
        held: list[int] = []  # whose keys are in the row's cache
        for node in range(len(each.token_ids)):
            path = path_to(each, node)
            depth = next(at for at, one in enumerate(path) if held[at : at + 1] != [one])
            for at in range(depth, len(path)):
                step = one_token(each.row, each.start + at, each.token_ids[path[at]])
                expected_logits, expected_states = decoder.forward([step])
            held = path
            assert torch.equal(own_logits[node], expected_logits[0])
            assert torch.equal(own_states[node : node + 1], of_only(expected_states))


def test_a_draft_of_few_rows_is_one_step(tiny_model: Tiny, device: str) -> None:
    """Its tokens have the bits that they have one by one, beside absent ones."""
    options = EngineOptions(
        device=device, dtype="float32", max_rows=2, max_seq_len=CONTEXT, num_guesses=8
    )
    runner = CudaRunner(tiny_model("qwen2-windows"), options)
    runner.load()
    rng, decoder = random.Random(5), runner.decoder
    steps.prefill(decoder, 0, 0, rng.choices(range(VOCAB_SIZE), k=40))
    steps.prefill(decoder, 1, 0, rng.choices(range(VOCAB_SIZE), k=20))
    rows = [draft(rng, 1, 20, TREES[0][:9]), draft(rng, 0, 40, CHAIN[:9])]
    assert_bits_of_one_by_one(decoder, rows)
    assert decoder._num_tokens == 18, "fewer would take several steps"


WAYS = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(top_p=0.9, temperature=1.5),
    SamplingParams(top_k=9, min_p=0.01),
)


@pytest.mark.parametrize("ways", [WAYS[:1], WAYS[:2], WAYS], ids=["greedy", "from all", "mixed"])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_draws_in_a_step_are_those_by_its_logits(
    is_recorded: bool, ways: Sequence[SamplingParams], decoders: Make
) -> None:
    """From rows, from more tokens than a step has, and beside prompts."""
    decoder, launched, _ = decoders("llama", is_recorded)
    fill(launched, random_prompts(2, MAX_ROWS))
    rng = random.Random(2)
    prompt = RowStep(8, 0, rng.choices(range(VOCAB_SIZE), k=70), wants_hidden=True)
    drafts = [draft(rng, row, 20, parents) for row, parents in enumerate((CHAIN, *TREES))]
    for plain in ([one_token(row, 50, row) for row in (7, 3, 30)], [*drafts, prompt], [prompt]):
        rows = [
            replace(row, draws=[Draw(rng.choice(ways), (), ()) for _ in row.draws]) for row in plain
        ]
        draws = [each for row in rows for each in row.draws]
        positions = [each for row in rows for each in row.positions[row.num_undrawn :]]
        plan = plan_of(draws, positions)
        assert plan is not None
        drawn, states = decoder.draw(rows, plan)
        logits, hidden = decoder.forward(rows)
        assert drawn == [each.token_id for each in sample(logits, draws, positions)]
        for own, expected in zip(states, hidden, strict=True):
            assert own is not None
            assert expected is not None
            assert torch.equal(own, expected)


def test_the_longest_tree_is_what_settings_allow() -> None:
    metadata = ModelSettings.model_fields["speculation_tokens"].metadata
    assert [each.le for each in metadata if isinstance(each, Le)] == [MAX_TREE_TOKENS - 1]


def draft(rng: random.Random, row: int, start: int, parents: Sequence[int]) -> RowStep:
    token_ids = rng.choices(range(VOCAB_SIZE), k=len(parents))
    is_chain = list(parents) == list(range(-1, len(parents) - 1))
    draws = [ANY_DRAW] * len(parents)
    return RowStep(row, start, token_ids, draws, None if is_chain else parents, wants_hidden=True)


def one_token(row: int, position: int, token_id: int) -> RowStep:
    return RowStep(row, position, [token_id], [ANY_DRAW], wants_hidden=True)


def of_only(hidden: Sequence[Tensor | None]) -> Tensor:
    (states,) = hidden
    assert states is not None
    return states


def path_to(step: RowStep, node: int) -> list[int]:
    """What a token follows of its step, and itself."""
    path = [node]
    while (parent := path[-1] - 1 if step.parents is None else step.parents[path[-1]]) >= 0:
        path.append(parent)
    return path[::-1]


@pytest.mark.parametrize("num_scored", [4, MAX_ROWS + 3])
def test_a_prompt_that_is_scored_changes_no_bit_of_its_neighbours(
    num_scored: int, decoders: Make
) -> None:
    decoder, launched, _ = decoders("llama", False)
    prompts = random_prompts(8, 4)
    fill(launched, prompts)
    expected = decode(decoder, prompts)
    free_row = next(row for row in range(MAX_ROWS) if row not in prompts)
    scored = random.Random(3).choices(range(VOCAB_SIZE), k=num_scored)
    num_first = num_scored // 2
    logits, _ = decoder.forward(
        [
            RowStep(free_row, 0, scored[:num_first], [ANY_DRAW] * num_first),
            *(
                RowStep(row, len(prompt) - 1, prompt[-1:], [ANY_DRAW])
                for row, prompt in prompts.items()
            ),
            RowStep(free_row, num_first, scored[num_first:], [ANY_DRAW] * (num_scored - num_first)),
        ]
    )
    of_scored = torch.cat([logits[:num_first], logits[num_first + 4 :]])
    assert torch.equal(logits[num_first : num_first + 4], expected)
    one_by_one = [decode(decoder, {0: scored[: count + 1]})[0] for count in range(num_scored)]
    assert torch.equal(of_scored, torch.stack(one_by_one))


def test_the_few_tokens_that_a_draft_model_lacks_are_part_of_the_step(decoders: Make) -> None:
    decoder, launched, _ = decoders("llama", False)
    rng = random.Random(11)
    text = rng.choices(range(VOCAB_SIZE), k=MAX_ROWS + 30)
    for num_undrawn in (3, MAX_ROWS + 5):
        start = len(text) - num_undrawn - 1
        steps.prefill(launched, 5, 0, text[:start])
        logits, (states,) = decoder.forward(
            [RowStep(5, start, text[start:], [ANY_DRAW], wants_hidden=True)]
        )
        assert states is not None
        assert len(states) == num_undrawn + 1
        steps.prefill(launched, 6, 0, text[:-1])
        expected = decoder.forward([one_token(6, len(text) - 1, text[-1])])
        assert_close(logits, expected.logits)
        assert_close(states[-1:], of_only(expected.hidden))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA would capture, and not fail")
def test_where_capture_fails_the_log_says_so_once_and_steps_go_on(
    decoders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    decoder, launched, _ = decoders("llama", False)
    prompts = random_prompts(9, 3)
    fill(launched, prompts)
    expected = decode(decoder, prompts)
    with caplog.at_level(logging.WARNING):
        decoder.record(capturing())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be captured" in caplog.text
    assert torch.equal(decode(decoder, prompts), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are CUDA's")
def test_captures_on_cuda_share_a_stream_and_leave_it_where_one_fails() -> None:
    capture, x = capturing(), torch.ones(8, 8, device="cuda")
    before, streams = torch.cuda.current_stream(), set[int]()

    def squared(x: Tensor) -> Sequence[Tensor]:
        streams.add(torch.cuda.current_stream().cuda_stream)
        return [x @ x]

    first, second = (capture(squared, x) for _ in range(2))
    with pytest.raises(RuntimeError):
        capture(lambda x: [x * x.sum().item()], x)
    assert torch.cuda.current_stream() == before
    assert len(streams) == 1
    assert torch.equal(first()[0], x @ x)
    assert torch.equal(second()[0], x @ x)


def test_lengths_hold_the_context_and_cost_little_together() -> None:
    assert step_lengths(2048) == [128, 512, 2048]
    assert step_lengths(100) == [128]
    for max_seq_len in range(1, 20_000, 77):
        lengths = step_lengths(max_seq_len)
        assert lengths[-1] >= max_seq_len
        assert sum(lengths) <= 1.4 * lengths[-1]
