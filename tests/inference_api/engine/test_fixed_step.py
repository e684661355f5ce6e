"""Decode steps of fixed shape beside the plain ones, launched and recorded.

Where there is no CUDA, make_fx records in the graph's place. Its recording keeps the host's values
of the moment too: what a step looked at on the host shows when it runs for other rows.
"""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from inference_api.engine.cuda_graph import captured
from inference_api.engine.decoder import Decoder
from inference_api.engine.engine_runner import EngineRunner
from inference_api.engine.fixed_step import FixedStepDecoder, Forward, Step, step_lengths
from inference_api.engine.kv_cache import KVCache
from inference_api.engine.options import EngineOptions
from inference_api.engine.runner import RowStep
from tests.inference_api.engine import steps
from tests.inference_api.engine.conftest import MAX_ROWS, TinyModel
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.engine.test_decoder import random_prompt
from tests.inference_api.engine.tiny_models import CONTEXT, MODELS, VOCAB_SIZE

LENGTHS = (16, 48, CONTEXT)  # several, so that rows of one step have several
DIFFERENT = (
    "llama",
    "mistral-window",
    "qwen2-windows",
    "qwen3",
    "falcon-7b",
)  # in their operations


class Decoders(NamedTuple):
    """Two over one cache."""

    fixed: FixedStepDecoder
    plain: Decoder
    cache: KVCache


Make = Callable[..., Decoders]


def recorded(forward: Forward, inputs: Tensor) -> Step:
    return partial(make_fx(forward)(inputs), inputs)


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def decoders(tiny_model: Callable[[str], TinyModel], device: str) -> Make:
    """By model name, whether steps are recorded, and precision, each made once per device."""

    @cache
    def make(name: str, is_recorded: bool, dtype: str = "float32") -> Decoders:
        options = EngineOptions(
            device=device, dtype=dtype, max_rows=MAX_ROWS, max_seq_len=CONTEXT, kernels=False
        )
        runner = EngineRunner(tiny_model(name)[0], options)
        runner.load()
        plain = runner.decoder
        if isinstance(plain, FixedStepDecoder):
            plain = plain._decoder
        assert isinstance(plain, Decoder)
        fixed = FixedStepDecoder(runner._config, plain, runner._cache, LENGTHS)
        if is_recorded:
            record = captured if device == "cuda" else recorded
            made: list[Step] = []

            def counted(forward: Forward, inputs: Tensor) -> Step:
                made.append(record(forward, inputs))
                return made[-1]

            with torch.inference_mode():
                fixed.capture(counted)
            assert len(made) == len(LENGTHS), "a recording failed"
        return Decoders(fixed, plain, runner._cache)

    return make


def fill(decoder: Decoder, prompts: Mapping[int, Sequence[int]]) -> None:
    """Prefill all but the last token of each row's prompt."""
    for row, prompt in prompts.items():
        if len(prompt) > 1:
            steps.prefill(decoder, row, 0, prompt[:-1])


def decode(decoder: Decoder | FixedStepDecoder, prompts: Mapping[int, Sequence[int]]) -> Tensor:
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


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "is_recorded"),
    [*((name, False) for name in MODELS), *((name, True) for name in DIFFERENT)],
)
def test_logits_and_caches_equal_those_of_plain_steps(
    name: str, is_recorded: bool, decoders: Make
) -> None:
    fixed, plain, kv_cache = decoders(name, is_recorded)
    for num_rows in (9, 1):
        prompts = random_prompts(num_rows, num_rows)
        fill(plain, prompts)
        actual = decode(fixed, prompts)
        keys, values = kv_cache.keys.clone(), kv_cache.values.clone()
        assert_close(actual, decode(plain, prompts))
        assert_close(keys, kv_cache.keys)
        assert_close(values, kv_cache.values)


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2-windows", "falcon-7b"])
def test_logits_are_the_same_bits_alone_and_beside_others_in_any_row(
    name: str, is_recorded: bool, decoders: Make
) -> None:
    fixed, plain, _ = decoders(name, is_recorded)
    prompts = random_prompts(5, MAX_ROWS)
    fill(plain, prompts)
    together = dict(zip(prompts, decode(fixed, prompts), strict=True))
    rows = list(prompts)[:7]
    for row in rows:
        assert torch.equal(decode(fixed, {row: prompts[row]})[0], together[row])
    for row in rows:
        other_row = {(row + 1) % MAX_ROWS: prompts[row]}
        fill(plain, other_row)
        assert torch.equal(decode(fixed, other_row)[0], together[row])


def test_bfloat16_rows_are_the_same_bits_alone_and_beside_others(decoders: Make) -> None:
    fixed, plain, _ = decoders("llama", False, "bfloat16")
    prompts = random_prompts(4, 8)
    fill(plain, prompts)
    together = decode(fixed, prompts)
    for logits, (row, prompt) in zip(together, prompts.items(), strict=True):
        assert torch.equal(decode(fixed, {row: prompt})[0], logits)
    similarity = torch.cosine_similarity(together, decode(plain, prompts))
    assert similarity.min() > 0.999


@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_caches_of_absent_rows_are_left_alone(is_recorded: bool, decoders: Make) -> None:
    fixed, plain, kv_cache = decoders("llama", is_recorded)
    fill(plain, random_prompts(6, MAX_ROWS))
    caches = (kv_cache.keys, kv_cache.values)
    copies = [each.clone() for each in caches]
    decode(fixed, {3: [5] * 20})
    for now, before in zip(caches, copies, strict=True):
        assert not torch.equal(now[:, 3, :, 19], before[:, 3, :, 19])
        before[:, 3, :, 19] = now[:, 3, :, 19]
        assert torch.equal(now, before)


def test_a_prompt_that_is_scored_changes_no_bit_of_its_neighbours(decoders: Make) -> None:
    fixed, plain, _ = decoders("llama", False)
    prompts = random_prompts(8, 4)
    fill(plain, prompts)
    expected = decode(fixed, prompts)
    free_row = next(row for row in range(MAX_ROWS) if row not in prompts)
    scored = [7, 8, 9, 10]
    logits, _ = fixed.forward(
        [
            RowStep(free_row, 0, [7, 8], [ANY_DRAW] * 2),
            *(
                RowStep(row, len(prompt) - 1, prompt[-1:], [ANY_DRAW])
                for row, prompt in prompts.items()
            ),
            RowStep(free_row, 2, [9, 10], [ANY_DRAW] * 2),
        ]
    )
    assert torch.equal(logits[2:-2], expected)
    one_by_one = [decode(fixed, {0: scored[: count + 1]})[0] for count in range(len(scored))]
    assert_close(torch.cat([logits[:2], logits[-2:]]), torch.stack(one_by_one))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA would capture, and not fail")
def test_where_capture_fails_the_log_says_so_once_and_steps_go_on(
    decoders: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fixed, plain, _ = decoders("llama", False)
    prompts = random_prompts(9, 3)
    fill(plain, prompts)
    expected = decode(fixed, prompts)
    with caplog.at_level(logging.WARNING):
        fixed.capture(captured)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be captured" in caplog.text
    assert torch.equal(decode(fixed, prompts), expected)


def test_lengths_hold_the_context_and_cost_little_together() -> None:
    assert step_lengths(2048) == [128, 512, 2048]
    assert step_lengths(100) == [112]
    for max_seq_len in range(1, 20_000, 77):
        lengths = step_lengths(max_seq_len)
        assert lengths[-1] >= max_seq_len
        assert sum(lengths) <= 1.4 * lengths[-1]
