"""Values that clients write in forms of their own and mean no harm by, in every field of a body."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from inference_api.apis.anthropic.body import MessagesBody
from inference_api.apis.embeddings import EmbeddingsBody
from inference_api.apis.native.body import NativeBody, parse_native_body
from inference_api.apis.openai.bodies import ChatBody, CompletionBody
from inference_api.apis.responses.body import ResponsesBody
from inference_api.apis.tokenize import DetokenizeBody, TokenizeBody
from inference_api.errors import InvalidRequest
from inference_api.web.entries import MAX_STOP_CHARS
from inference_api.web.fields import Body, parse

TURNS: Any = [{"role": "user", "content": "a"}]
LEAST: dict[type[Body], dict[str, Any]] = {
    ChatBody: {"messages": TURNS},
    CompletionBody: {"prompt": "a"},
    ResponsesBody: {"input": "a"},
    MessagesBody: {"messages": TURNS, "max_tokens": 1},
    EmbeddingsBody: {"input": "a"},
    NativeBody: {"text": "a"},
    TokenizeBody: {"prompt": "a"},
    DetokenizeBody: {"tokens": [1]},
}
TEXTS = {"cache_salt", "guided_grammar", "guided_json", "guided_regex", "instructions", "model"} | {
    *("prompt", "session_id", "system")
}
STOPS = {"stop", "stop_sequence", "stop_sequences"}
FIELDS = [
    (kind, field.alias or name) for kind in LEAST for name, field in kind.model_fields.items()
]


def read(kind: type[Body], body: bytes) -> Body:
    return parse_native_body(NativeBody, body) if kind is NativeBody else parse(kind, body)


def outcome(kind: type[Body], **fields: Any) -> object:
    """The body, or why it is refused."""
    try:
        return read(kind, json.dumps(LEAST[kind] | fields).encode())
    except InvalidRequest as refused:
        return str(refused).replace("type=number", "type=integer")


@pytest.mark.parametrize(("kind", "name"), FIELDS)
@pytest.mark.parametrize(("whole", "integer"), [(2.0, 2), ([1.0, 2], [1, 2]), ([[2.0]], [[2]])])
def test_whole_numbers_are_integers_in_every_field(
    kind: type[Body], name: str, whole: Any, integer: Any
) -> None:
    assert outcome(kind, **{name: whole}) == outcome(kind, **{name: integer})


@pytest.mark.parametrize("kind", LEAST)
def test_numbers_that_are_not_whole_are_no_integers(kind: type[Body]) -> None:
    for name, field in kind.model_fields.items():
        if not isinstance(outcome(kind, **{name: 2}), str) and "int" in str(field.annotation):
            assert isinstance(outcome(kind, **{name: 2.5}), str), name


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_an_empty_text_is_absent_where_no_text_can_stand(kind: type[Body], name: str) -> None:
    if name not in TEXTS and name not in LEAST[kind]:
        assert outcome(kind, **{name: ""}) == outcome(kind)
    if name in STOPS:
        assert outcome(kind, **{name: ["", "b", ""]}) == outcome(kind, **{name: ["b"]})


@pytest.mark.parametrize(("kind", "name"), [each for each in FIELDS if each[1] in STOPS])
def test_stop_strings_are_bounded(kind: type[Body], name: str) -> None:
    longest = "a" * MAX_STOP_CHARS
    assert isinstance(outcome(kind, **{name: [longest]}), kind)
    assert f"more than {MAX_STOP_CHARS} characters" in str(outcome(kind, **{name: [longest + "a"]}))


def test_inside_of_objects_it_is_so_too() -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": ""}}
    thinking = {"type": "enabled", "budget_tokens": 1024.0}
    whole = outcome(ChatBody, tools=[tool], thinking=thinking)
    assert isinstance(whole, ChatBody)
    assert whole.thinking is not None
    assert whole.thinking.budget_tokens == 1024


PARAMS: dict[type[Body], Callable[[Any], Any]] = {
    ChatBody: lambda body: body.params()[0],
    CompletionBody: lambda body: body.params()[0],
    ResponsesBody: lambda body: body.chat().params[0],
    MessagesBody: lambda body: body.params(),
    NativeBody: lambda body: body.params(),
}


@pytest.mark.parametrize("kind", PARAMS)
def test_a_seed_of_minus_one_is_drawn_anew(kind: type[Body]) -> None:
    def seeds(seed: int) -> set[int]:
        params = [PARAMS[kind](outcome(kind, seed=seed)) for _ in range(4)]
        return {each.sampling.seed for each in params}

    assert len(seeds(-1)) == 4
    assert len(seeds(-2)) == len(seeds(7)) == 1


@pytest.mark.parametrize("kind", LEAST)
def test_a_byte_order_mark_is_left_out(kind: type[Body]) -> None:
    body = json.dumps(LEAST[kind]).encode()
    assert read(kind, b"\xef\xbb\xbf" + body) == read(kind, body)


@pytest.mark.parametrize("kind", LEAST)
def test_a_malformed_body_is_told_where(kind: type[Body]) -> None:
    """By all but the native routes, which have the reference's words."""
    body = json.dumps(LEAST[kind]).encode()
    for broken in (*(body[:size] for size in range(len(body))), body + b"}", body[:-1] + b",}"):
        with pytest.raises(InvalidRequest) as refused:
            read(kind, broken)
        place = r" Send a JSON object in UTF-8: .*: line 1 column \d+ \(char \d+\)\."
        told = str(refused.value).removeprefix("Malformed JSON request body.")
        assert re.fullmatch("" if kind is NativeBody else place, told)
    with pytest.raises(InvalidRequest, match=r"(body\.|it is no object\.)$"):
        read(kind, b"[]")
