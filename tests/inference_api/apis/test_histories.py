"""Histories that began elsewhere: every type of item, block and part that the clients' own types
allow in a request is read here, or left aside and said."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from anthropic.types.beta import BetaContentBlockParam
from anthropic.types.beta.beta_tool_result_block_param import Content as ResultContent
from openai.types.chat import ChatCompletionContentPartParam
from openai.types.responses import ResponseInputContentParam, ResponseInputItemParam, ToolParam
from typing_extensions import get_type_hints, is_typeddict

from inference_api.apis.anthropic.body import MessagesBody
from inference_api.apis.openai.bodies import ChatBody
from inference_api.apis.responses.body import ResponsesBody
from inference_api.errors import InvalidRequest
from inference_api.web.fields import Body, Json, parse
from inference_api.web.left_aside import LeftAside

Place = Literal["block", "result", "item", "content", "part"]
UNIONS: dict[Place, Any] = {
    "block": BetaContentBlockParam,
    "result": ResultContent,
    "item": ResponseInputItemParam,
    "content": ResponseInputContentParam,
    "part": ChatCompletionContentPartParam,
}
# These ask for something: what is kept elsewhere, a summary, another format or tools from here on.
ASKING = {"item_reference", "compaction_trigger", "configuration_update"}
ASKING |= {"tool_addition", "tool_removal"}
# What other servers of OpenAI's API take or give in a chat besides.
OTHERS = {"input_text", "output_text", "reasoning", "refusal"}
CALLS = {"tool_use", "tool_result"}  # in a chat they are no parts, but tool_calls and messages


def types_in(union: Any) -> Iterator[str]:
    """Yields the types of all objects in a union."""
    for each in get_args(union):
        if is_typeddict(each):
            stated = get_type_hints(each).get("type")
            for part in (stated, *get_args(stated)):
                yield from get_args(part) if get_origin(part) is Literal else ()
        else:
            yield from types_in(each)


def refusal(place: Place, part: Json) -> str:
    """Returns why a body with this part is refused; empty if it is not."""
    hello: Json = {"role": "user", "content": "hello"}
    parts = [{"type": "tool_result", "tool_use_id": "t", "content": [part]}]
    turn = {"role": "user", "content": parts if place == "result" else [part]}
    kind: type[Body] = ResponsesBody
    body: Json = {"input": [hello, part if place == "item" else turn]}
    if place == "part":
        kind, body = ChatBody, {"messages": [turn]}
    elif place in ("block", "result"):
        kind, body = MessagesBody, {"messages": [turn, hello], "max_tokens": 1}
    try:
        parse(kind, json.dumps(body).encode())
    except InvalidRequest as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("place", "type_"),
    [
        *((place, each) for place, union in UNIONS.items() for each in sorted({*types_in(union)})),
        *(("part", each) for each in sorted({*types_in(BetaContentBlockParam)} | OTHERS)),
    ],
)
def test_every_type_is_read_or_left_aside(place: Place, type_: str) -> None:
    """Frameworks send blocks of Anthropic's in a chat, too, once another model goes on with it."""
    found = refusal(place, {"type": type_, "content": [], "refusal": "no"})
    is_refused = "is of a type that is not served" in found or ".type: is" in found
    assert is_refused == (type_ in ASKING or (place == "part" and type_ in CALLS))


@pytest.mark.parametrize("type_", sorted({*types_in(ToolParam)}))
def test_every_tool_is_taken_or_left_aside(type_: str) -> None:
    """As the clients' own types allow it: with what it must have, and no more."""
    function: Json = {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object"},
        "strict": False,
    }
    described: dict[str, Json] = {
        "function": function,
        "custom": {"name": "f"},
        "namespace": function | {"tools": []},
    }
    tool = {"type": type_, **described.get(type_, {})}
    parse(ResponsesBody, json.dumps({"input": "hello", "tools": [tool]}).encode())


@pytest.mark.parametrize("execution", [{}, {"execution": None}, {"execution": "server"}])
def test_searches_that_openais_servers_run_are_left_aside(execution: Json) -> None:
    hello, item = {"role": "user", "content": "hello"}, {"execution": "server", "call_id": None}
    call = {"type": "tool_search_call", "arguments": {"paths": ["f"]}, **item}
    found = {"type": "tool_search_output", "tools": [{"type": "function", "name": "f"}], **item}
    tools = [{"type": "tool_search", **execution}, {"type": "function", "name": "f"}]
    sent = {"input": [hello, call, found], "tools": tools}
    aside = LeftAside(ResponsesBody)
    body = parse(ResponsesBody, json.dumps(sent).encode(), aside)
    assert [tool.name for tool in body.offered] == ["f"]
    assert len(body.chat().turns) == 1
    places = {"tools[].tool_search", "input[].tool_search_call", "input[].tool_search_output"}
    assert set(aside.paths) == places


def test_the_types_of_every_union_are_found() -> None:
    assert all({*types_in(union)} & {"text", "input_text", "message"} for union in UNIONS.values())
