"""`/v1/responses` on a model of random weights: by OpenAI's client, and in bytes."""

import json
from contextlib import suppress
from typing import Any

import openai
import pytest
import requests
from pydantic import BaseModel, Field

from lab.kit.servers import TIMEOUT_S, ServedApi
from tests.e2e.test_tools import MODEL, SCHEMAS, check_arguments

LOGPROBS = "message.output_text.logprobs"
TOOLS: list[Any] = [
    {"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()
]
# Begins well, and has no end, which is found out after the text: a short one, or `max_tokens` may
# come before it.
ENDLESS = {
    "$defs": {
        "a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}
    },
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 9}, "a": {"$ref": "#/$defs/a"}},
    "required": ["text", "a"],
}


@pytest.fixture(scope="module")
def api(tools_api: ServedApi) -> ServedApi:
    return tools_api


def ask(client: openai.OpenAI, seed: int = 1, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "input": "hi", "extra_body": {"seed": seed}}
    return client.responses.create(**asked | fields)


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """Of a stream, whose `event:` lines say what the data says."""
    events = []
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def broken_events(api: ServedApi, path: str, **asked: Any) -> list[dict[str, Any]]:
    """Of a stream that breaks off."""
    pieces = []
    with requests.post(f"{api.url}{path}", json=asked, stream=True, timeout=TIMEOUT_S) as response:
        coming = response.iter_content(None)
        with suppress(requests.exceptions.ChunkedEncodingError):
            while True:
                pieces.append(next(coming))
    return events_of(b"".join(pieces))


def test_text_whole(client: openai.OpenAI) -> None:
    response = ask(client, instructions="Be brief.", max_output_tokens=8, metadata={"a": "b"})
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")
    assert response.output_text
    assert response.usage.output_tokens == 8
    assert response.usage.total_tokens == response.usage.input_tokens + 8
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})


def test_instructions_are_of_the_prompt(client: openai.OpenAI) -> None:
    plain, told = (
        ask(client, max_output_tokens=1, instructions=instructions).usage.input_tokens
        for instructions in (None, "Be brief.")
    )
    as_item = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert plain < told
    assert ask(client, max_output_tokens=1, input=as_item).usage.input_tokens == told


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief."},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False},
        {"input": [{"role": "user", "content": "hi"}] * 3, "reasoning": {"effort": "low"}},
    ],
)
def test_the_count_is_the_one_of_an_answer(client: openai.OpenAI, fields: Any) -> None:
    counted = client.responses.input_tokens.count(**{"model": MODEL, "input": "hi"} | fields)
    assert counted.object == "response.input_tokens"
    used = ask(client, **fields, max_output_tokens=1).usage
    assert counted.input_tokens == used.input_tokens


def test_events_of_a_text_in_order(api: ServedApi, client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "input": "hi", "max_output_tokens": 8, "seed": 1}
    ask(client, max_output_tokens=8)  # so that both others find the prompt in the cache
    raw = api.post("/v1/responses", **asked, stream=True)
    assert raw.headers["Content-Type"].startswith("text/event-stream")
    events = events_of(raw.content)
    kinds = [event["type"].removeprefix("response.") for event in events]
    num_deltas = kinds.count("output_text.delta")
    assert num_deltas > 0
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * num_deltas,
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = ask(client, max_output_tokens=8)
    text = "".join(event["delta"] for event in events if "delta" in event)
    assert text == whole.output_text == events[-1]["response"]["output"][0]["content"][0]["text"]
    assert events[-1]["response"]["usage"] == whole.usage.to_dict()


def test_events_of_calls_in_order(api: ServedApi) -> None:
    asked = {"model": MODEL, "input": "hi", "tools": TOOLS, "tool_choice": "required", "seed": 4}
    events = events_of(api.post("/v1/responses", **asked, stream=True).content)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert (kinds[:2], kinds[-1]) == (["created", "in_progress"], "completed")
    output = events[-1]["response"]["output"]
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        assert [event["type"].rpartition(".")[2] for event in own] == [
            *("added", *["delta"] * (len(own) - 3), "done", "done")
        ]
        assert own[0]["item"] == {**item, "arguments": "", "status": "in_progress"}
        assert "".join(event["delta"] for event in own[1:-2]) == item["arguments"]
        assert own[-2]["arguments"] == item["arguments"]
        assert {event["item_id"] for event in own[1:-1]} == {item["id"]}
        assert own[-1]["item"] == item
        assert item["status"] == "completed"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "now"}])
def test_calls_that_are_asked_for_are_valid(client: openai.OpenAI, choice: Any) -> None:
    for seed in range(3):
        response = ask(client, seed, tools=TOOLS, tool_choice=choice)
        calls = calls_of(response)
        assert calls == response.output
        assert response.status == "completed"
        for call in calls:
            check_arguments(call.name, call.arguments)
        if choice != "required":
            assert [call.name for call in calls] == ["now"]


def test_one_call_where_several_are_not_wanted_and_of_the_allowed(client: openai.OpenAI) -> None:
    allowed = {"type": "function", "name": "add-up"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [allowed]}
    response = ask(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert [call.name for call in calls_of(response)] == ["add-up"]


def test_output_is_taken_back_as_input(client: openai.OpenAI) -> None:
    response = ask(client, tools=TOOLS, tool_choice="required")
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
        for call in calls_of(response)
    ]
    for output in (response.output, [item.model_dump() for item in response.output]):
        given: list[Any] = [{"role": "user", "content": "hi"}, *output, *results]
        again = ask(client, input=given, tools=TOOLS, tool_choice="none", max_output_tokens=4)
        assert again.output_text
        given += [*again.output, {"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
        last = ask(client, input=given, max_output_tokens=1)
        assert last.usage.input_tokens > again.usage.input_tokens


def test_the_stream_helper_reads_calls_and_parsed_texts(client: openai.OpenAI) -> None:
    class Person(BaseModel):
        name: str = Field(max_length=8)
        is_small: bool

    asked: dict[str, Any] = {"model": MODEL, "input": "Who?", "extra_body": {"seed": 2}}
    parsed = client.responses.parse(**asked, text_format=Person)
    assert isinstance(parsed.output_parsed, Person)
    with client.responses.stream(**asked, text_format=Person) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    assert {"response.output_text.delta", "response.completed"} <= kinds
    tool: Any = {**openai.pydantic_function_tool(Person)["function"], "type": "function"}
    with client.responses.stream(**asked, tools=[tool], tool_choice="required") as stream:
        arguments = {
            event.arguments
            for event in stream
            if event.type == "response.function_call_arguments.done"
        }
        response = stream.get_final_response()
    assert {call.arguments for call in calls_of(response)} == arguments
    for call in calls_of(response):
        assert Person.model_validate(call.parsed_arguments)


@pytest.mark.parametrize(
    "fields", [{"top_logprobs": 3}, {"include": [LOGPROBS], "top_logprobs": 3}]
)
def test_logprobs_are_those_of_a_chat_wherever_they_stand(
    client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    hello: list[Any] = [{"role": "user", "content": "hi"}]
    chat = client.chat.completions.create(
        model=MODEL, messages=hello, max_tokens=9, seed=1, logprobs=True, top_logprobs=3
    )
    assert chat.choices[0].logprobs is not None
    wanted = [entry.model_dump() for entry in chat.choices[0].logprobs.content or ()]
    for entry in [*wanted, *(top for each in wanted for top in each["top_logprobs"])]:
        entry["bytes"] = entry["bytes"] or []
    events = list(ask(client, max_output_tokens=9, stream=True, **fields))
    told = {
        kind: [
            each.to_dict()
            for event in events
            if event.type == f"response.output_text.{kind}"
            for each in event.logprobs
        ]
        for kind in ("delta", "done")
    }
    assert told == {"delta": wanted, "done": wanted}
    for response in (events[-1].response, ask(client, max_output_tokens=9, **fields)):
        assert response.top_logprobs == 3
        assert [each.to_dict() for each in response.output[0].content[0].logprobs] == wanted


def test_logprobs_without_likelier_tokens_are_included(api: ServedApi) -> None:
    answer = api.post("/v1/responses", model=MODEL, input="hi", include=[LOGPROBS, "other"])
    entries = answer.json()["output"][0]["content"][0]["logprobs"]
    assert entries
    assert not any(entry["top_logprobs"] for entry in entries)
    assert answer.headers["X-Hearth-Ignored"] == "include"


def test_what_asks_for_nothing_is_accepted(client: openai.OpenAI) -> None:
    neutral: dict[str, Any] = {
        "background": False,
        "include": ["reasoning.encrypted_content"],
        "previous_response_id": None,
        "reasoning": {"effort": "none", "summary": "auto"},
        "service_tier": "auto",
        "store": True,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tools": [],
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": "me",
    }
    assert ask(client, **neutral, max_output_tokens=1).status == "incomplete"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id",
         "is not served; leave it out and send all items in input, as nothing is kept"),
        ({"top_logprobs": 21}, "top_logprobs", "is 21; give 20 or less"),
        ({"include": ["a"] * 65}, "include", "include: has 65 entries; give 64 or fewer"),
        ({"background": True}, "background", "is not served; leave it out or give false"),
        ({"input": []}, "input", "input: has 0 entries"),
        ({"input": ""}, "input", "input: is empty"),
        ({"input": 5}, "input", "input: give a text or a list of items"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input", "input[0]: is of a type"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input", "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input",
         "input[0].call_id: is missing"),
        ({"input": "x" * 9000}, "input", "maximum context length"),
        ({"max_output_tokens": 0}, "max_output_tokens", "is 0; give 1 or more"),
        ({"temperature": 10**400}, "temperature", "give 2 or less"),
        ({"tool_choice": "required"}, "tool_choice", "asks for calls, and there are no tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text", "text.format.schema"),
        ({"metadata": {"a": "b" * 513}}, "metadata", "metadata.a"),
        ({"max_output_token": 5}, "max_output_token", "did you mean max_output_tokens?"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(
    api: ServedApi, fields: dict[str, Any], param: str, message: str
) -> None:
    response = api.post("/v1/responses", **{"model": MODEL, "input": "hi"} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert message in response.json()["message"]


def test_an_error_in_a_stream_is_an_event_and_the_end_of_the_response(
    api: ServedApi, client: openai.OpenAI
) -> None:
    form = {"type": "json_schema", "name": "endless", "schema": ENDLESS}
    asked: Any = {"model": MODEL, "input": "hi", "text": {"format": form}, "stream": True}
    *_, error, failed = broken_events(api, "/v1/responses", **asked)
    assert (error["type"], error["code"]) == ("error", "constraint_failed")
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["message"] == error["message"]
    stream = client.responses.create(**asked)
    kinds: list[str] = []
    with pytest.raises(openai.APIConnectionError):
        kinds.extend(event.type for event in stream)
    assert kinds[-2:] == ["error", "response.failed"]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        ask(client, model="nobody")
