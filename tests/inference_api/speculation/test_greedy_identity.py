"""Greedy answers to questions in held-out wordings are those of single steps, whoever guesses:
alone, and among 31 others that come and go."""

import random
from collections.abc import Callable
from functools import cache
from itertools import cycle

import pytest

from inference_api.request import GenerationRequest, SamplingParams
from lab.models.default.evaluation import Trial, draw_trials
from tests.inference_api.speculation.decoding import (
    Answer,
    Decoding,
    Model,
    one_by_one,
    request_of,
)
from tests.inference_api.speculation.sources import SOURCES, Known

NUM_PROMPTS = 48  # more than there are rows
NUM_ALONE = 8
# The other sources are for what these guess seldom, and forms differ in their kernels alone.
SERVED = {("int8", "medusa"), ("int8", "ngram")}
PAIRS = [
    *(("int8", source) for source in SOURCES),
    *(("float32", "medusa"), ("float32", "random trees")),
    *(("int4", "oracle"), ("int4", "adversary")),
]
TRIALS_SEED = 20261123
LEAST_TOKENS, MOST_TOKENS = 8, 32
SCORED = SamplingParams(temperature=0.0, num_logprobs=4)  # the adversary has to know


def prompt_of(model: Model, trial: Trial) -> list[int]:
    if not trial.is_chat:
        return model.tokenizer.encode(trial.exchange.question)
    turns = [(turn.question, turn.answer) for turn in trial.history]
    said = [each for turn in turns for each in turn] + [trial.exchange.question]
    roles = cycle(("user", "assistant"))
    return model.tokenizer.encode_chat(
        [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    )


def questions(model: Model) -> list[GenerationRequest]:
    """Of all categories; as long as they are, or cut after a number of tokens of their own."""
    dice = random.Random(TRIALS_SEED)
    trials = dice.sample(draw_trials(TRIALS_SEED, per_category=14), NUM_PROMPTS)
    stop = model.tokenizer.stop_token_ids
    return [
        request_of(prompt_of(model, each), dice.randint(LEAST_TOKENS, MOST_TOKENS), SCORED, stop)
        for each in trials
    ]


@pytest.fixture(scope="module")
def plain(model_of: Callable[[str], Model]) -> Callable[[str], list[Answer]]:
    """What a form of the model says to each question alone, in single steps."""

    def answers(form: str) -> list[Answer]:
        asked = questions(model_of(form))[: NUM_PROMPTS if form == "int8" else NUM_ALONE]
        return one_by_one(Decoding(model_of(form)), asked)

    return cache(answers)


@pytest.mark.parametrize(("form", "source"), PAIRS)
def test_answers_are_those_of_single_steps_alone_and_among_31_others(
    model_of: Callable[[str], Model],
    plain: Callable[[str], list[Answer]],
    form: str,
    source: str,
) -> None:
    model = model_of(form)
    known = plain(form)
    num_together = NUM_PROMPTS if (form, source) in SERVED else NUM_ALONE
    for decode, count in ((one_by_one, NUM_ALONE), (Decoding.answers, num_together)):
        expected = known[:count]
        drafts = SOURCES[source](model, Known(expected))
        answers = decode(Decoding(model, drafts), [answer.request for answer in expected])
        assert [each.said for each in answers] == [each.said for each in expected]
        num_drafted = sum(event.drafted_tokens for each in answers for event in each.events)
        num_accepted = sum(each.accepted_tokens for each in answers)
        assert num_drafted > 0
        assert (num_accepted > 0) == (source != "adversary")
