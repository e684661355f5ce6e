"""`/v1/messages` on a model of random weights: by Anthropic's client, and in bytes."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import jsonschema
import pytest
from pydantic import BaseModel

from lab.kit.servers import ROOT, ServedApi
from tests.e2e.test_responses import ENDLESS, broken_events, events_of
from tests.e2e.test_tools import MODEL, SCHEMAS

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"name": name, "input_schema": SCHEMAS[name]} for name in SCHEMAS]
CACHED = {"cache_control": {"type": "ephemeral"}}


@pytest.fixture(scope="module")
def api(tools_api: ServedApi) -> ServedApi:
    return tools_api


@pytest.fixture(scope="module")
def client(api: ServedApi) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=api.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, seed: int = 1, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 400}
    return client.messages.create(**asked | {"extra_body": {"seed": seed}} | fields)


def check(blocks: Any) -> None:
    assert blocks
    for block in blocks:
        assert block.type == "tool_use"
        jsonschema.validate(block.input, SCHEMAS[block.name])


def test_text_whole(client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=8)
    message = raw.parse()
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO)
    assert message.usage.input_tokens == counted.input_tokens
    assert message.usage.output_tokens == 8


def test_a_stop_sequence_is_told(client: anthropic.Anthropic) -> None:
    text = ask(client, max_tokens=12).content[0].text
    message = ask(client, max_tokens=12, stop_sequences=["never", text[3]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[3])
    assert text[3] not in "".join(block.text for block in message.content)


def test_events_of_a_text_in_order(api: ServedApi, client: anthropic.Anthropic) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "seed": 1}
    raw = api.post("/v1/messages", **asked, stream=True)
    assert raw.headers["Content-Type"].startswith("text/event-stream")
    events = events_of(raw.content)
    kinds = [event["type"] for event in events]
    num_deltas = kinds.count("content_block_delta")
    assert kinds == [
        *("message_start", "content_block_start", *["content_block_delta"] * num_deltas),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    whole = ask(client, max_tokens=8)
    start = events[0]["message"]
    assert start["usage"] == {"input_tokens": whole.usage.input_tokens, "output_tokens": 0}
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert events[1]["content_block"] == {"type": "text", "text": ""}
    text = "".join(event["delta"]["text"] for event in events[2:-3])
    assert text == whole.content[0].text
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 8


def test_blocks_of_calls_do_not_overlap(api: ServedApi) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 400, "tools": TOOLS, "seed": 4}
    body = api.post("/v1/messages", **asked, tool_choice={"type": "any"}, stream=True).content
    events = events_of(body)[1:-2]
    assert [event["index"] for event in events] == sorted(event["index"] for event in events)
    for index in range(events[-1]["index"] + 1):
        first, *deltas, last = [event for event in events if event["index"] == index]
        assert (first["type"], last["type"]) == ("content_block_start", "content_block_stop")
        block = first["content_block"]
        assert (block["type"], block["input"], bool(block["id"])) == ("tool_use", {}, True)
        assert {event["delta"]["type"] for event in deltas} == {"input_json_delta"}
        given = json.loads("".join(event["delta"]["partial_json"] for event in deltas))
        jsonschema.validate(given, SCHEMAS[block["name"]])


def test_calls_that_are_asked_for_are_valid(client: anthropic.Anthropic) -> None:
    for seed in range(3):
        message = ask(client, seed, tools=TOOLS, tool_choice={"type": "any"})
        assert message.stop_reason == "tool_use"
        check(message.content)
    named: Any = {"type": "tool", "name": "now"}
    message = ask(client, tools=TOOLS, tool_choice=named)
    assert message.stop_reason == "tool_use"
    assert [(block.name, block.input) for block in message.content] == [("now", {})]
    one: Any = {"type": "any", "disable_parallel_tool_use": True}
    for seed in range(3):
        assert len(ask(client, seed, tools=TOOLS, tool_choice=one).content) == 1


def test_the_stream_helper_adds_up_to_the_whole_answer(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 400}
    calls: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "any"}}
    for fields in (calls, {"max_tokens": 10}):
        with client.messages.stream(**asked | fields, extra_body={"seed": 3}) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_message()
        whole = ask(client, 3, **fields)
        assert {"content_block_stop", "message_stop"} <= kinds
        assert without_ids(streamed.content) == without_ids(whole.content)
        assert (streamed.stop_reason, streamed.usage.output_tokens) == (
            whole.stop_reason,
            whole.usage.output_tokens,
        )


def without_ids(blocks: Any) -> list[Any]:
    return [block.model_dump(include={"type", "text", "name", "input"}) for block in blocks]


def test_a_parsed_answer_keeps_to_its_schema(client: anthropic.Anthropic) -> None:
    class Person(BaseModel):
        size: Literal["small", "large"]
        is_old: bool

    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 200}
    message = client.messages.parse(**asked, output_format=Person, extra_body={"seed": 2})
    assert isinstance(message.parsed_output, Person)
    older: Any = {"type": "json_schema", "schema": Person.model_json_schema()}
    text = client.messages.create(**asked, extra_body={"output_format": older, "seed": 2}).content
    assert without_ids(text) == without_ids(message.content)


def test_answers_and_results_go_back_to_the_model(client: anthropic.Anthropic) -> None:
    message = ask(client, tools=TOOLS, tool_choice={"type": "any"})
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "12"}
        for block in message.content
    ]
    failed: list[Any] = [{**result, "is_error": True} for result in results]
    parts: list[Any] = [
        {**result, "content": [{"type": "text", "text": "12"}], **CACHED} for result in results
    ]
    counts = []
    for given in (results, failed, parts):
        for content in (message.content, [block.model_dump() for block in message.content]):
            messages: list[Any] = [*HELLO, {"role": "assistant", "content": content}]
            messages.append({"role": "user", "content": [*given, {"type": "text", "text": "So?"}]})
            again = ask(client, messages=messages, tools=TOOLS, max_tokens=1)
            counts.append(again.usage.input_tokens)
    assert counts[0] == counts[1] == counts[4] == counts[5]
    assert counts[2] == counts[3] == counts[0] + len(results) * len("Error: ")
    thought = {"type": "thinking", "thinking": "Well.", "signature": "abc"}
    kept = [*HELLO, {"role": "assistant", "content": [thought, {"type": "text", "text": "a"}]}]
    assert ask(client, messages=[*kept, *HELLO], max_tokens=1).usage.output_tokens == 1


def test_system_and_tools_are_counted(client: anthropic.Anthropic) -> None:
    def count(**fields: Any) -> Any:
        asked: dict[str, Any] = {"model": MODEL, "messages": HELLO}
        return client.messages.count_tokens(**asked | fields).input_tokens

    block: Any = {"type": "text", "text": "Be brief.", **CACHED}
    assert count() < count(system="Be brief.") == count(system=[block])
    assert count() < count(tools=TOOLS)
    assert count(tools=TOOLS, tool_choice={"type": "none"}) == count()
    asked: Any = {"system": [block], "tools": TOOLS}
    assert ask(client, **asked, max_tokens=1).usage.input_tokens == count(**asked)


def test_tokens_beyond_the_context_are_no_fault(client: anthropic.Anthropic) -> None:
    message = ask(client, max_tokens=20_000, stop_sequences=["e"])
    assert message.stop_reason in ("stop_sequence", "end_turn")


def test_what_asks_for_nothing_is_accepted(client: anthropic.Anthropic) -> None:
    neutral: dict[str, Any] = {
        "cache_control": {"type": "ephemeral"},
        "metadata": {"user_id": "me"},
        "service_tier": "auto",
        "stop_sequences": [],
        "system": "",
        "thinking": {"type": "adaptive"},
        "tools": [],
        "extra_body": {"temperature": 1, "top_k": 0, "top_p": 1.0, "seed": None},
    }
    assert ask(client, **neutral, max_tokens=2).stop_reason == "max_tokens"
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    asked: Any = {"thinking": thinking, "stop_sequences": ["e"]}
    assert ask(client, **asked, max_tokens=1025).stop_reason in ("stop_sequence", "end_turn")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens: is missing; give it."),
        ({"max_tokens": 0}, "max_tokens: is 0; give 1 or more."),
        ({"temperature": 1.5}, "temperature: is 1.5; give 1 or less."),
        ({"stop_sequences": ["a"] * 9}, "stop_sequences: has 9 entries; give 8 or fewer."),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": TOOLS * 2}, "tools: 'weather' is there more than once"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: asks for calls, and there are no tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: comes with type tool"),
        ({"stop_sequence": ["a"]}, "stop_sequence: is not known (did you mean stop_sequences?)"),
        ({"messages": []}, "messages: has 0 entries; give 1 or more."),
        ({"messages": [*HELLO, {"role": "assistant", "content": []}]}, "messages: the last is"),
        ({"messages": [{"role": "user", "content": [{"type": "picture"}]}]},
         "messages[0].content[0]: is of a type that is not served; give text, thinking"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]},
         "messages[0].content: thinking is no block of role user"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "prompt is too long: "),
    ],
)  # fmt: skip
def test_refusals_are_anthropics(api: ServedApi, fields: dict[str, Any], message: str) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4} | fields
    response = api.post("/v1/messages", **body)
    assert response.status_code == 400, response.text
    request_id = response.headers["request-id"]
    error = response.json()["error"]
    assert response.json() == {"type": "error", "error": error, "request_id": request_id}
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(message)


def test_an_error_in_a_stream_is_its_last_event(
    api: ServedApi, client: anthropic.Anthropic
) -> None:
    form = {"format": {"type": "json_schema", "schema": ENDLESS}}
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 1000, "output_config": form}
    first, *_, error = broken_events(api, "/v1/messages", **asked, stream=True)
    assert (first["type"], error["type"]) == ("message_start", "error")
    assert error["error"]["type"] == "invalid_request_error"
    stream = client.messages.create(**asked, stream=True)
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(stream)
    body: Any = caught.value.body
    assert body["error"] == error["error"]


def test_the_documented_example_runs_as_it_is(
    model_api: ServedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    example = re.search(r"```python\n(from anthropic.*?)```", page, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example[1].replace("http://127.0.0.1:7000", model_api.url), names)
    names["client"].close()
    assert capsys.readouterr().out.strip()


def test_errors_before_the_route_are_anthropics_too(
    api: ServedApi, client: anthropic.Anthropic
) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, model="nobody")
    assert caught.value.request_id
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.RequestTooLargeError):
        ask(client, messages=[{"role": "user", "content": "x" * 5_000_000}])
    for path, status in (("/v1/messages", 405), ("/v1/messages/batches", 404)):
        answer = api.get(path)
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
    assert "status_code" in api.get("/v1/messagesx").json()
    assert re.fullmatch(r"\S+", api.get("/v1/messages").headers["request-id"])


def test_a_client_that_asks_for_a_thread_goes_on_without(client: anthropic.Anthropic) -> None:
    """Its runner of tools does so by itself, and sends only what is new in a thread."""
    calls: list[str] = []

    @anthropic.beta_tool  # type: ignore[untyped-decorator]
    def look(place: Literal["here", "there"]) -> str:
        """Look.

        Args:
            place: Where.
        """
        calls.append(place)
        return "nothing"

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=200,
        messages=HELLO,
        tools=[look],
        tool_choice={"type": "tool", "name": "look"},
        max_iterations=2,
    )
    first, *_ = runner
    assert first.stop_reason == "tool_use"
    assert calls
