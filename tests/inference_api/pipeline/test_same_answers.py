"""Forty requests in 32 rows: over two and three ranks they are answered as by one process."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import pytest

from inference_api.pipeline.ranks import Split
from inference_api.pipeline.runner import PipelineRunner
from inference_api.request import GenerationRequest, SamplingParams
from tests.inference_api.pipeline.rings import make_pipeline
from tests.inference_api.speculation.decoding import GREEDY, Answer, Decoding, Model, request_of
from tests.inference_api.speculation.sources import SOURCES, Known

NUM_PROMPTS = 40
MOVED: dict[int, tuple[str, Split]] = {2: ("medusa", (4, 1)), 3: ("random trees", (1, 3, 1))}
SYSTEM = "You are a friendly teller of stories for small children. Tell me about a"


def requests(model: Model) -> Sequence[GenerationRequest]:
    """Greedy and seeded, short and of several parts, of which many begin alike, so that rows take
    each other's prefixes."""
    dice = random.Random(0)
    animals = ("fox", "owl", "bear and its three cubs", "snail", "whale")
    made = []
    for number in range(NUM_PROMPTS):
        text = f"{SYSTEM} {dice.choice(animals)} number {dice.randrange(20)}." * dice.choice(
            (1, 1, 1, 1, 10)
        )
        seeded = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, seed=number)
        sampling = dice.choice((GREEDY, seeded))
        made.append(request_of(model.tokenizer.encode(text), dice.randint(6, 16), sampling))
    return made


@pytest.fixture(scope="module")
def alone() -> Callable[[str], Sequence[Answer]]:
    """What one process says."""

    @cache
    def answers(form: str) -> Sequence[Answer]:
        model = Model(form)
        return Decoding(model).answers(requests(model))

    return answers


@pytest.fixture(
    scope="module",
    params=[("float32", (2, 3)), ("int8", (2, 1, 2))],
    ids=str,
)
def ranks(request: pytest.FixtureRequest) -> Iterator[tuple[str, Model]]:
    form, split = request.param
    model = Model(form, make_runner=partial(make_pipeline, split=split))
    yield form, model
    model.runner.close()


def test_answers_are_those_of_one_process_and_stay_when_layers_have_moved(
    alone: Callable[[str], Sequence[Answer]], ranks: tuple[str, Model]
) -> None:
    """Guessed at, and in single steps."""
    form, model = ranks
    assert isinstance(model.runner, PipelineRunner)
    expected = alone(form)
    source, split = MOVED[len(model.runner.split)]
    decoding = Decoding(model, SOURCES[source](model, Known(expected)))
    guessed_at = decoding.answers(requests(model))
    assert [each.said for each in guessed_at] == [each.said for each in expected]
    assert decoding.backend.snapshot.totals.reused_tokens > 100
    assert sum(each.accepted_tokens for each in guessed_at) > 0
    model.runner.set_split(split)
    answers = Decoding(model).answers(requests(model))
    assert [each.said for each in answers] == [each.said for each in expected]
