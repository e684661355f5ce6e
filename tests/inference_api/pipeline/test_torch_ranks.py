"""Ranks that decode by torch, on the CPU: the bits of one process with the same decoder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch

from inference_api.engine.cuda.decoder import PROMPT_SIZES
from inference_api.engine.cuda.part_decoder import Layers, PartDecoder
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.kernels.interface import Floats
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.messages import PROMPT_TOKENS
from inference_api.pipeline.rank_runners import MakeRunner
from inference_api.pipeline.runner import PipelineRunner
from inference_api.request import GenerationRequest, SamplingParams
from inference_api.runner import Draw, RowResult, RowStep, place_own_pages
from lab.device.launches import TritonRunner
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.engine.test_graphs import recorded
from tests.inference_api.pipeline.rings import make_pipeline
from tests.inference_api.speculation.decoding import GREEDY, Decoding, Model, request_of
from tests.inference_api.speculation.sources import SOURCES, Known

Runner = TypeVar("Runner", CudaRunner, PipelineRunner)
OPTIONS = EngineOptions(device="cpu", dtype="float32", max_rows=3, max_seq_len=128, num_guesses=4)
SEEDED = Draw(SamplingParams(temperature=0.9, top_p=0.9, seed=7), (0,), ())
SCORED = Draw(SamplingParams(temperature=0.0, num_logprobs=5), (0,), ())
TOKENS = [*range(20, 119)]
# Prompts that are read, one that is drawn from at once, and a tree.
STEPS = (
    (RowStep(1, 0, TOKENS, wants_hidden=True), RowStep(0, 0, TOKENS[:70], (SEEDED,))),
    (
        RowStep(2, 0, TOKENS[:6], (ANY_DRAW,) * 3, (-1, 0, 1, 2, 2, 4), wants_hidden=True),
        RowStep(1, 99, (5, 6, 7), (SEEDED, SCORED)),
        RowStep(0, 70, (9,), (SEEDED,)),
    ),
)
RECORDED = "llama"
OF_ONE_TOKEN = (RowStep(1, 3, (9,), (SEEDED,)),)


@pytest.fixture(autouse=True)
def _interpreted(interpreter: None) -> Iterator[None]:
    """Triton's interpreter computes what nobody reads, too."""
    with np.errstate(all="ignore"):
        yield


class InOneProcess:
    """Layers after others', each row of a step in a part of its own."""

    def __init__(self, runner: CudaRunner) -> None:
        self._runner = runner

    def after(
        self, layers: Layers, rows: Sequence[RowStep], prompts: Sequence[RowStep] = ()
    ) -> Iterator[tuple[Sequence[RowStep], Floats]]:
        for number, row in enumerate((*prompts, *rows)):
            is_prompt = number < len(prompts)
            residual = self._runner.layers([row], layers([row], is_prompt), is_prompt)
            yield [row], residual[list(row.returned)]


def loaded(kind: type[CudaRunner], folder: Path, options: EngineOptions) -> CudaRunner:
    runner = kind(folder, options)
    runner.load()
    place_own_pages(runner)
    return runner


def results(runner: CudaRunner, steps: Sequence[Sequence[RowStep]]) -> list[RowResult]:
    return [result for rows in steps for result in runner.step(rows)]


# Layers whose parts, norms, experts or heads differ. The first has weights that are packed, and
# steps that are recorded.
@pytest.mark.parametrize(
    ("name", "quantization", "kind"),
    [
        ("llama", "int8", CudaRunner),
        ("falcon-7b", "none", CudaRunner),
        ("gemma3-capped", "none", CudaRunner),
        ("gpt-oss", "none", CudaRunner),
        ("deepseek-v3", "none", CudaRunner),
        ("falcon-7b", "none", TritonRunner),
    ],
)
def test_parts_have_the_bits_of_all_layers(
    name: str, quantization: str, kind: type[CudaRunner], tiny_model: Tiny
) -> None:
    folder, options = tiny_model(name), replace(OPTIONS, quantization=quantization)
    steps: Sequence[Sequence[RowStep]] = STEPS
    if kind is TritonRunner:  # whose interpreter takes seconds for more
        steps, options = (OF_ONE_TOKEN,), replace(options, max_rows=2, num_guesses=0)
    whole = loaded(kind, folder, options)
    first, second = (
        loaded(kind, folder, options.with_layers(LayerRange(index, index + 1)))
        for index in range(2)
    )
    with torch.inference_mode():
        for runner in (first, second):
            runner.decoder.try_out(steps[-1][0])
            if name == RECORDED:
                runner.decoder.record(recorded)
    assert isinstance(first.decoder, PartDecoder)
    first.decoder.others = InOneProcess(second)
    for one, other in zip(results(first, steps), results(whole, steps), strict=True):
        assert one.drawn == other.drawn
        np.testing.assert_array_equal(np.asarray(one.hidden), np.asarray(other.hidden))
    with torch.inference_mode():
        actual, expected = (each.decoder.forward(steps[-1]).logits for each in (first, whole))
    assert torch.equal(actual, expected)


def small(make: Callable[..., Runner], folder: Path, options: EngineOptions) -> Runner:
    return make(folder, replace(options, max_rows=4, max_seq_len=512))


def torch_parts(folder: Path, options: EngineOptions) -> MakeRunner:
    return lambda layers: CudaRunner(folder, options.with_layers(layers))


def requests(model: Model) -> Sequence[GenerationRequest]:
    """A prompt of two sizes, and one that begins alike."""
    text = "You are a friendly teller of stories. Tell me about a fox and its three cubs. "
    seeded = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, seed=3)
    prompts = (text * 20, text * 20 + "Now!", "Once upon a time", text)
    ways = (GREEDY, seeded, seeded, GREEDY)
    return [
        request_of(model.tokenizer.encode(prompt), 10, way)
        for prompt, way in zip(prompts, ways, strict=True)
    ]


def test_answers_round_the_ring_are_those_of_one_process() -> None:
    alone = Model("float32", make_runner=partial(small, CudaRunner))
    expected = Decoding(alone).answers(requests(alone))
    ring = partial(make_pipeline, split=(2, 2, 1), parts=torch_parts)
    model = Model("float32", make_runner=partial(small, ring))
    assert isinstance(model.runner, PipelineRunner)
    drafts = SOURCES["random trees"](model, Known(expected))
    try:
        plain = Decoding(model).answers(requests(model))
        model.runner.set_split((3, 1, 1))
        drafted = Decoding(model, drafts).answers(requests(model))
    finally:
        model.runner.close()
    said = [each.said for each in expected]
    assert [each.said for each in plain] == said
    assert [each.said for each in drafted] == said
    assert sum(each.accepted_tokens for each in drafted) > 0


def test_messages_hold_what_is_computed_of_a_prompt_at_once() -> None:
    assert max(PROMPT_SIZES) == PROMPT_TOKENS
