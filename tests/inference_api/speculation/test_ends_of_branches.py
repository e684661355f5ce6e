"""Where an answer ends inside an accepted branch, and requests that leave while a step runs: the
embedded model, with a source that knows what it will say."""

from collections.abc import Callable, Sequence

import pytest

from inference_api.request import FinishReason, SamplingParams
from inference_api.runner import RowResult, RowStep
from tests.inference_api.speculation.decoding import Answer, Decoding, Model, one_by_one, request_of
from tests.inference_api.speculation.sources import SOURCES, Known

QUESTION = "What is the capital of Kenya?"
SENTENCE = "The quick brown fox sees the lazy dog. "
SAMPLED = SamplingParams(temperature=0.9, top_k=20, seed=3)

guessing = pytest.mark.parametrize("source", ["oracle", "random trees"])


@pytest.fixture(scope="module")
def model(model_of: Callable[[str], Model]) -> Model:
    return model_of("int8")


def plain(model: Model, *prompts: list[int], max_tokens: int = 100) -> list[Answer]:
    """What each is answered alone in single steps, a greedy and a sampled answer by turns."""
    stop = model.tokenizer.stop_token_ids
    ways = (SamplingParams(temperature=0.0), SAMPLED)
    return one_by_one(
        Decoding(model),
        [
            request_of(prompt, max_tokens, ways[number % 2], stop)
            for number, prompt in enumerate(prompts)
        ],
    )


@guessing
def test_end_of_text_inside_a_branch_ends_the_answer(model: Model, source: str) -> None:
    """The oracle guesses the end token, and another one behind it."""
    (expected,) = plain(model, model.tokenizer.encode(QUESTION))
    assert expected.finish_reason is FinishReason.STOP
    decoding = Decoding(model, SOURCES[source](model, Known([expected])))
    (answer,) = decoding.answers([expected.request])
    assert answer.said == expected.said
    assert len(answer.events) < len(expected.events)
    assert answer.accepted_tokens <= len(answer.tokens)


@guessing
def test_max_tokens_inside_a_branch_cuts_the_answer(model: Model, source: str) -> None:
    prompt = model.tokenizer.encode("Tell me a story about a fox.")
    (whole,) = plain(model, prompt, max_tokens=20)
    decoding = Decoding(model, SOURCES[source](model, Known([whole])))
    for max_tokens in range(1, 12):
        (answer,) = decoding.answers([request_of(prompt, max_tokens)])
        assert answer.said == (whole.tokens[:max_tokens], FinishReason.LENGTH)


@guessing
def test_context_that_ends_inside_a_branch_ends_the_answer(model: Model, source: str) -> None:
    """Prompts that leave room for so many tokens, one after the other: each goes on from a row that
    holds most of it."""
    sentence, rooms = model.tokenizer.encode(SENTENCE), (5, 3, 2, 1)
    most = model.runner.max_seq_len
    whole = sentence * (most // len(sentence) + 1)
    asked = [request_of(whole[: most - room], 100) for room in rooms]  # whatever it would end
    expected = one_by_one(Decoding(model), asked)
    for answer, room in zip(expected, rooms, strict=True):
        assert (len(answer.tokens), answer.finish_reason) == (room, FinishReason.LENGTH)
    decoding = Decoding(model, SOURCES[source](model, Known(expected)))
    answers = one_by_one(decoding, asked)
    assert [each.said for each in answers] == [each.said for each in expected]


@guessing
def test_request_that_leaves_inside_a_step_leaves_others_and_its_prefix_as_they_were(
    model: Model, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of the first one hangs up while the model computes its fourth step. Who asks the
    same afterwards takes over what the row holds of it, drafted tokens too."""
    texts = ("Tell me a story about a fox.", QUESTION, "Draft a letter from Rosa to Maria.")
    expected = plain(model, *(model.tokenizer.encode(text) for text in texts), max_tokens=40)
    decoding = Decoding(model, SOURCES[source](model, Known(expected)))
    step, num_steps = model.runner.step, 0

    def step_and_hang_up(rows: Sequence[RowStep]) -> list[RowResult]:
        nonlocal num_steps
        num_steps += 1
        results = step(rows)
        if num_steps == 4:
            decoding.backend.cancel(decoding.requests[0])
        return results

    monkeypatch.setattr(model.runner, "step", step_and_hang_up)
    left, *others = decoding.answers([each.request for each in expected])
    assert left.tokens == expected[0].tokens[: len(left.tokens)]
    assert left.finish_reason is None
    assert 3 < len(left.tokens) < len(expected[0].tokens)
    assert [each.said for each in others] == [each.said for each in expected[1:]]
    assert decoding.backend.users == [None] * model.runner.max_rows
    (again,) = decoding.answers([expected[0].request])
    assert again.said == expected[0].said
    assert again.events[0].reused_tokens > 0
