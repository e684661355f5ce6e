"""Answers in the forms of `/v1/responses` and `/v1/messages`: thoughts, text and a call."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference_api._mock_inference_api_server import ByteTokenizer
from inference_api.apis.anthropic.answer import MessageWriter, _input
from inference_api.apis.anthropic.body import MessagesBody
from inference_api.apis.chat import ChatAnswer
from inference_api.apis.embeddings import EmbeddingsBody
from inference_api.apis.openai.bodies import ChatBody, CompletionBody
from inference_api.apis.openai.logprobs import Logprobs
from inference_api.apis.responses.answer import ResponseWriter
from inference_api.apis.responses.body import ResponsesBody
from inference_api.errors import InvalidRequest
from inference_api.request import FinishReason, ScoredToken, TokenLogprobs
from inference_api.tools.answers import AnswerReader, Thought
from inference_api.tools.calls import Calls
from inference_api.tools.formats import hermes
from inference_api.web.fields import MAX_INTEGER, Body, Json, parse
from tests.e2e.test_responses import events_of

PIECES = [
    *("<think>", "Let me", " see.", "</think>"),
    "Well",
    *(':<tool_call>{"name": "f", "argu', 'ments": {"a": [1', "]}}</tool_call>"),
]


class ScriptedGeneration:
    """A token for each piece; `num_pieces` of them."""

    prompt_tokens = (1, 2, 3)
    stop_string = None

    def __init__(self, num_pieces: int, finish_reason: FinishReason) -> None:
        self.completion_tokens = 0
        self.finish_reason = finish_reason
        self._num_pieces = num_pieces
        self._scored: list[ScoredToken] = []

    def pieces(self) -> Iterator[str]:
        for piece in PIECES[: self._num_pieces]:
            self.completion_tokens += 1
            logprobs = TokenLogprobs(-1.0, 1, ())
            self._scored += [ScoredToken(id_, logprobs) for id_ in piece.encode()]
            yield piece

    def take_scored(self) -> list[ScoredToken]:
        scored, self._scored = self._scored, []
        return scored

    def record(self) -> Any:
        return SimpleNamespace(
            prompt_tokens=3, reused_tokens=2, completion_tokens=self.completion_tokens
        )


def answer(num_pieces: int = len(PIECES)) -> ChatAnswer:
    is_whole = num_pieces == len(PIECES)
    reason = FinishReason.STOP if is_whole else FinishReason.LENGTH
    generation = ScriptedGeneration(num_pieces, reason)
    thought = Thought("<think>", "</think>")
    reader = AnswerReader(hermes, Calls({"f": {"type": "object"}}, lambda _: "call_1"), thought)
    return ChatAnswer(cast(Any, generation), reader)


def response_writer() -> ResponseWriter:
    body = ResponsesBody.model_validate({"model": "m", "input": "hi"})
    return ResponseWriter("resp_1", "m", 5, body, Logprobs(ByteTokenizer(), is_chat=True))


def test_only_the_text_of_a_response_has_logprobs() -> None:
    (thought, text, call) = cast(Any, response_writer().complete([answer()])["output"])
    ((shown,), (told,)) = (thought["content"], text["content"])
    assert "".join(entry["token"] for entry in told["logprobs"]) == told["text"] == "Well:"
    assert "logprobs" not in {*shown, *call}


def test_a_response_has_an_item_for_each_part() -> None:
    response = response_writer().complete([answer()])
    thought, message, call = cast(list[Any], response["output"])
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert message["content"][0]["text"] == "Well:"
    assert (call["name"], call["call_id"]) == ("f", "call_1")
    assert json.loads(call["arguments"]) == {"a": [1]}
    assert {item["status"] for item in (thought, message, call)} == {"completed"}
    usage = response["usage"]
    assert usage is not None
    assert usage["input_tokens_details"]["cached_tokens"] == 2
    assert usage["output_tokens_details"]["reasoning_tokens"] == 3  # and the tag that ends them
    assert list(response)[-1] == "usage"


def test_events_of_thoughts_are_those_of_reasoning() -> None:
    events = events_of(b"".join(response_writer().stream([answer()])))
    own = [event for event in events if event.get("output_index") == 0]
    assert [event["type"].removeprefix("response.") for event in own] == [
        *("output_item.added", "content_part.added"),
        *["reasoning_text.delta"] * (len(own) - 5),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
    ]
    assert own[0]["item"]["content"] == []
    assert events[-1]["response"] == response_writer().complete([answer()])


def test_what_is_cut_is_incomplete_from_its_last_item_on() -> None:
    response = response_writer().complete([answer(len(PIECES) - 1)])
    assert response["status"] == "incomplete"
    items = cast(list[Any], response["output"])
    assert [item["status"] for item in items] == ["completed", "completed", "incomplete"]
    assert items[-1]["arguments"] == '{"a": [1'


def test_a_message_has_a_block_for_each_part() -> None:
    message = MessageWriter("1", "m").complete([answer()])
    assert message["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": ""},
        {"type": "text", "text": "Well:"},
        {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": [1]}},
    ]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("tool_use", len(PIECES))
    cut = MessageWriter("1", "m").complete([answer(len(PIECES) - 1)])
    last: Any = cut["content"][-1]
    assert (cut["stop_reason"], last["input"]) == ("max_tokens", {"a": [1]})


def test_events_of_thoughts_are_those_of_thinking() -> None:
    events = events_of(b"".join(MessageWriter("1", "m").stream([answer()])))
    first, *deltas, last = [event for event in events if event.get("index") == 0]
    assert first["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert {event["delta"]["type"] for event in deltas} == {"thinking_delta"}
    assert "".join(event["delta"]["thinking"] for event in deltas) == "Let me see."
    assert last == {"type": "content_block_stop", "index": 0}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ('{"a": "cut in the mid', {"a": "cut in the mid"}),
        ('{"a": 1, "b', {"a": 1}),
        ("{", {}),
        ("", {}),
        ("{}", {}),
        ("oops", {"INVALID_JSON": "oops"}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a": ' + "9" * 5000 + "}", {"INVALID_JSON": '{"a": ' + "9" * 5000 + "}"}),
        ('{"a":' * 5000, {"INVALID_JSON": '{"a":' * 5000}),
    ],
    ids=range(11),
)
def test_arguments_are_an_object_whatever_a_model_wrote(arguments: str, given: object) -> None:
    assert _input(arguments) == given


@pytest.mark.parametrize(("name_chars", "id_chars"), [(128, 16_384), (129, 1), (1, 16_385)])
def test_names_and_ids_may_be_as_long_as_other_servers_make_them(
    name_chars: int, id_chars: int
) -> None:
    name, call_id = "f" * name_chars, "c" * id_chars
    function = {"name": name, "arguments": "{}"}
    of_function = {"type": "function", "name": name}
    bodies: dict[type[Body], Json] = {
        ChatBody: {
            "tools": [{"type": "function", "function": {"name": name}}],
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": call_id, "function": function}]},
                {"role": "tool", "tool_call_id": call_id, "content": "1"},
            ],
        },
        ResponsesBody: {
            "tools": [{"type": "namespace", "name": name, "tools": [of_function]}],
            "input": [
                {"type": "function_call", "call_id": call_id, **function},
                {"type": "function_call_output", "call_id": call_id, "output": "1"},
            ],
        },
        MessagesBody: {
            "max_tokens": 1,
            "tools": [{"name": name, "input_schema": {}}],
            "messages": [
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id}]},
            ],
        },
    }  # fmt: skip
    for kind, body in bodies.items():
        is_within = (name_chars, id_chars) == (128, 16_384)
        with nullcontext() if is_within else pytest.raises(InvalidRequest):
            parse(kind, json.dumps(body).encode())


@pytest.mark.parametrize("salt", ["s", "x" * 256, "x" * 257])
def test_no_route_that_reads_a_prompt_drops_its_salt(salt: str) -> None:
    """Else what was remembered of the prompt would be shared, which the caller asked not to be."""
    said = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    bodies: dict[type[Body], Json] = {
        ChatBody: said,
        MessagesBody: said,
        ResponsesBody: {"input": "a"},
        CompletionBody: {"prompt": "a"},
        EmbeddingsBody: {"input": "a"},
    }
    for kind, body in bodies.items():
        data = json.dumps(body | {"cache_salt": salt}).encode()
        if len(salt) > 256:
            with pytest.raises(InvalidRequest, match="cache_salt"):
                parse(kind, data)
            continue
        read: Any = parse(kind, data)
        params: Any = read.chat().params if kind is ResponsesBody else read.params()
        (one,) = params if isinstance(params, list) else [params]
        assert one.cache_salt == salt


@pytest.mark.parametrize(
    ("kind", "field", "body"),
    [
        (ChatBody, "max_tokens", {"messages": [{"role": "user", "content": "a"}]}),
        (ChatBody, "max_completion_tokens", {"messages": [{"role": "user", "content": "a"}]}),
        (CompletionBody, "max_tokens", {"prompt": "a"}),
        (ResponsesBody, "max_output_tokens", {"input": "a"}),
    ],
)
def test_minus_1_is_as_many_tokens_as_there_is_room_for(
    kind: type[Body], field: str, body: Json
) -> None:
    read: Any = parse(kind, json.dumps(body | {field: -1}).encode())
    (one,) = read.chat().params if kind is ResponsesBody else read.params()
    assert one.max_tokens == MAX_INTEGER
    with pytest.raises(InvalidRequest, match=f"{field}: is -2; give [01] or more"):
        parse(kind, json.dumps(body | {field: -2}).encode())


def test_a_response_shows_every_kind_of_tool_as_it_was_sent() -> None:
    """Warnings are errors here: servers would write them beside their log."""
    custom = {"type": "custom", "name": "c", "format": {"type": "text"}}
    tools = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        custom,
        {"type": "local_shell"},
        {"type": "tool_search", "execution": "client"},
        {"type": "namespace", "name": "n", "tools": [custom]},
    ]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "c"}]}
    sent = {"model": "m", "input": "hi", "tools": tools, "tool_choice": choice}
    body = ResponsesBody.model_validate(sent)
    logprobs = Logprobs(ByteTokenizer(), is_chat=True)
    told = ResponseWriter("resp_1", "m", 5, body, logprobs).complete([answer()])
    assert (told["tools"], told["tool_choice"]) == (tools, choice)
