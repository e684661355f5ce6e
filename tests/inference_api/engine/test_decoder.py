"""The decoder against transformers' own models, and each row against itself in other company."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from inference_api.engine.cuda.decoder import Decoder
from inference_api.runner import RowStep
from tests.inference_api.conftest import MAX_ROWS, Runner, Tiny, make_runner
from tests.inference_api.engine.steps import ANY_DRAW, decode
from tests.inference_api.engine.tiny_models import CONTEXT, MODELS, VOCAB_SIZE, transformers_model

PROMPT = random.Random(7).choices(range(3, VOCAB_SIZE), k=40)
DRAWN = 5
every_model = pytest.mark.parametrize("name", MODELS)

Loaded = Callable[[str], Runner]
Exact = Callable[[str], Tensor]


@pytest.fixture(scope="module")
def exact() -> Exact:
    """By transformers, computed once for all engines: logits of every position of PROMPT."""

    @torch.inference_mode()
    def logits(name: str) -> Tensor:
        every: Tensor = transformers_model(name)(torch.tensor([PROMPT])).logits[0]
        return every

    return cache(logits)


def prefill(runner: Runner, row: int, tokens: Sequence[int], cuts: Sequence[int] = ()) -> None:
    """Prefill `tokens` in chunks that end at `cuts`."""
    borders = [0, *cuts, len(tokens)]
    for start, end in pairwise(borders):
        runner.step([RowStep(row, start, tokens[start:end])])


def next_logits(runner: Runner, prompts: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
    """Decode the last token of each row's prompt in one step: logits by row."""
    with torch.inference_mode():
        logits = decode(
            runner.decoder,
            [prompt[-1] for prompt in prompts.values()],
            list(prompts),
            [len(prompt) - 1 for prompt in prompts.values()],
        )
    return dict(zip(prompts, logits, strict=True))


def random_prompt(rng: random.Random) -> list[int]:
    return rng.choices(range(3, VOCAB_SIZE), k=rng.randrange(2, CONTEXT))


@every_model
@torch.inference_mode()
def test_logits_of_every_position_equal_those_of_transformers(
    name: str, exact: Exact, loaded: Loaded
) -> None:
    """Some in a step, and the last ones by one, as an answer is made."""
    decoder, actual = loaded(name).decoder, []
    borders = [*range(0, len(PROMPT) - DRAWN, DRAWN), *range(len(PROMPT) - DRAWN, len(PROMPT) + 1)]
    for start, end in pairwise(borders):
        tokens = PROMPT[start:end]
        logits = decoder.forward([RowStep(3, start, tokens, (ANY_DRAW,) * len(tokens))]).logits
        actual.append(torch.as_tensor(logits).cpu().clone())
    torch.testing.assert_close(torch.cat(actual), exact(name), atol=1e-4, rtol=0)


def test_embeddings_of_gemma_3_have_their_factor_in_the_precision_of_the_sums(
    tiny_model: Tiny,
) -> None:
    """In bfloat16, as transformers and Gemma's own training have it; else the root as it is."""
    factors = []
    for dtype in ("float32", "bfloat16"):
        decoder = make_runner(tiny_model("gemma3"), "torch", dtype, 1).decoder
        assert isinstance(decoder, Decoder)
        factors.append(decoder._embedding_multiplier.item())
    assert factors == [pytest.approx(96**0.5, abs=1e-6), 9.8125]


@every_model
def test_logits_equal_those_of_transformers_however_the_prompt_is_cut(
    name: str, exact: Exact, loaded: Loaded
) -> None:
    runner, rng = loaded(name), random.Random(name)
    row, num_cuts = rng.randrange(MAX_ROWS), rng.randrange(1, 4)
    prefill(runner, row, PROMPT[:-1], sorted(rng.sample(range(1, len(PROMPT) - 1), num_cuts)))
    actual = next_logits(runner, {row: PROMPT})[row]
    torch.testing.assert_close(actual.cpu(), exact(name)[-1], atol=1e-4, rtol=0)


def assert_rows_do_not_mix(runner: Runner, num_neighbours: int) -> None:
    rng = random.Random(num_neighbours)
    rows = rng.sample(range(MAX_ROWS), num_neighbours + 1)
    prompts = {row: random_prompt(rng) for row in rows}
    for row, prompt in prompts.items():
        prefill(runner, row, prompt[:-1])
    together = next_logits(runner, prompts)
    for row in rows[:4]:
        other_row = (row + 1) % MAX_ROWS
        prefill(runner, other_row, prompts[row][:-1])
        alone = next_logits(runner, {other_row: prompts[row]})[other_row]
        assert torch.equal(alone, together[row])


@every_model
def test_logits_are_the_same_bits_alone_and_beside_others_in_any_row(
    name: str, loaded: Loaded
) -> None:
    for num_neighbours in (1, MAX_ROWS - 1) if name == "llama" else (3,):
        assert_rows_do_not_mix(loaded(name), num_neighbours)


def test_logits_are_the_same_bits_when_two_threads_of_torch_share_the_work(
    tiny_model: Tiny,
) -> None:
    """Those of the kernels do in all tests of theirs."""
    runner = make_runner(tiny_model("llama"), "torch", "float32", MAX_ROWS)
    torch.set_num_threads(2)
    try:
        for num_neighbours in (1, MAX_ROWS - 1):
            assert_rows_do_not_mix(runner, num_neighbours)
    finally:
        torch.set_num_threads(1)


def test_bfloat16_rows_are_the_same_bits_alone_and_beside_others(
    tiny_model: Tiny, engine: str
) -> None:
    runner = make_runner(tiny_model("llama"), engine, "bfloat16", 8)
    rng, model = random.Random(3), transformers_model("llama")
    prompts = {row: random_prompt(rng) for row in range(8)}
    for row, prompt in prompts.items():
        prefill(runner, row, prompt[:-1])
    together = next_logits(runner, prompts)
    for row, prompt in prompts.items():
        assert torch.equal(next_logits(runner, {row: prompt})[row], together[row])
        with torch.inference_mode():
            exact = model(torch.tensor([prompt])).logits[0, -1]
        similarity = torch.cosine_similarity(together[row].cpu(), exact, dim=0)
        assert similarity > 0.999
