"""Choices of one request, of which some have paused."""

import json
from collections.abc import Iterator
from itertools import islice

from inference_api._mock_inference_api_server import ByteTokenizer
from inference_api.apis.chat import ChatAnswer, plain_reader
from inference_api.apis.choosing import ChosenModel
from inference_api.apis.openai.bodies import CompletionBody
from inference_api.apis.openai.choices import DONE, ChoicesWriter
from inference_api.core.generations import TextGeneration
from inference_api.core.timeline import Timeline
from inference_api.request import (
    FinishReason,
    GenerationRequest,
    OutputQueue,
    SessionId,
    TokenEvent,
)
from inference_api.text.tokens import StopMatcher, TextStream

TOKENIZER = ByteTokenizer()


def begun(output: OutputQueue) -> ChatAnswer:
    """An answer whose first event was told."""
    generation = TextGeneration(
        GenerationRequest(output, "m", (1,)),
        TextStream(TOKENIZER, frozenset()),
        StopMatcher((), 0, False),
        Timeline(0.0, lambda gap_s: None),
    )
    generation.wait_until_started()
    return ChatAnswer(generation, plain_reader())


def said(chunks: Iterator[bytes]) -> list[tuple[int, str, str | None]]:
    choices = [json.loads(each.removeprefix(b"data: "))["choices"][0] for each in chunks]
    return [(each["index"], each["text"], each["finish_reason"]) for each in choices]


def test_a_choice_that_has_paused_holds_up_no_other() -> None:
    outputs = [OutputQueue(SessionId(str(number)), "m") for number in range(2)]
    for output in outputs:
        output.put(TokenEvent((ord("a"),)))
    answers = [begun(output) for output in outputs]
    body = CompletionBody.model_validate({"prompt": "x", "n": 2, "stream": True})
    stream = ChoicesWriter(body, TOKENIZER, ChosenModel("m", "m"), "r", 0).stream(answers)
    outputs[0].put(TokenEvent((ord("b"),)))
    outputs[0].put(TokenEvent((ord("c"),), FinishReason.LENGTH))
    of_first = [(0, "b", None), (0, "c", None), (0, "", "length")]
    told = [(0, "a", None), (1, "a", None), *of_first]
    assert said(islice(stream, 5)) == told  # the other one has paused
    outputs[1].put(TokenEvent((ord("d"),), FinishReason.LENGTH))
    *second, done = stream
    assert said(iter(second)) == [(1, "d", None), (1, "", "length")]
    assert done == DONE
