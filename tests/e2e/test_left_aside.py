"""What a body asks for and does not get, without harm: it is taken, left aside, and said. Bodies as
coding agents and SDKs send them."""

import re
from typing import Any

import pytest

from lab.kit.servers import ServedApi

MODEL = "hearth-tiny"
HELLO = [{"role": "user", "content": "hello"}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
PARIS = {"type": "text", "text": "A city."}
IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:,"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
CALL = {"id": "c", "function": {"name": "f", "arguments": {}}}
WEATHER = {"name": "weather", "description": "of a town", "input_schema": SCHEMA}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": HELLO, "max_tokens": 1},
    "messages": {"messages": HELLO, "max_tokens": 1},
    "responses": {"input": HELLO, "max_output_tokens": 1},
}


def said(api: ServedApi, family: str, fields: dict[str, Any]) -> list[str]:
    response = api.post(PATHS[family], **{"model": MODEL, **BODIES[family], **fields})
    assert response.status_code == 200, response.text
    return [each for each in response.headers.get("X-Hearth-Ignored", "").split(", ") if each]


def turn(*parts: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(parts)}]


@pytest.mark.parametrize(
    ("family", "fields", "expected"),
    [
        ("chat", {"user": "me", "metadata": {}, "store": False}, ["user"]),
        ("chat", {"verbosity": "low", "reasoning_effort": "high"},
         ["verbosity", "reasoning_effort"]),
        ("chat", {"enable_thinking": True}, ["enable_thinking"]),
        ("chat", {"thinking": {"type": "enabled", "budget_tokens": 0}}, ["thinking"]),
        ("chat", {"chat_template_kwargs": {"mood": "calm"}}, ["chat_template_kwargs.mood"]),
        ("chat", {"stream_options": {"include_usage": True}}, []),
        ("chat", {"colour": "blue", "färbe": 1, "x" * 500: 1}, ["colour", "unknown"]),
        ("chat", {"messages": [HELLO[0] | {"name": "Ada", "timestamp": 5}]}, ["messages[].name"]),
        ("chat", {"messages": turn({"type": "text", "text": "a"}, IMAGE_URL)},
         ["messages[].content[].image_url"]),
        ("chat", {"messages": turn({"type": "text", "text": "a", "cache_control": {"type": "e"}})},
         ["messages[].content[].cache_control"]),
        ("chat", {"messages": [*HELLO, *turn({"type": "thinking", "thinking": "x"},
                  {"type": "output_text", "text": "a"}, role="assistant"), *HELLO]},
         ["messages[].content[].thinking"]),
        ("chat", {"messages": [{"role": "user", "content": ["a", {"type": "text", "text": "b"}]}]},
         []),
        ("chat", {"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL]},
                               {"role": "tool", "tool_call_id": "c", "content": []}]}, []),
        ("chat", {"tools": [{"type": "web_search"}, {"function": {"name": "f"}}]},
         ["tools[].web_search"]),
        ("chat", {"repeat_penalty": 1.1}, []),
        ("chat", {"response_format": {"type": "json_object", "schema": SCHEMA}}, []),
        ("messages", {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
                      "thinking": {"type": "adaptive", "display": "omitted"},
                      "output_config": {"effort": "max"}, "mcp_servers": [], "container": None},
         ["thinking.display", "context_management", "output_config.effort"]),
        ("messages", {"tools": [{"type": "web_search_20260209", "name": "web_search"}]},
         ["tools[].web_search_20260209"]),
        ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, []),
        ("messages", {"tools": [WEATHER | {"eager_input_streaming": True}]},
         ["tools[].eager_input_streaming"]),
        ("messages", {"messages": turn({"type": "text", "text": "a"}, IMAGE)},
         ["messages[].content[].image"]),
        ("messages", {"messages": [*HELLO, *turn({"type": "redacted_thinking", "data": "x"},
                      {"type": "text", "text": "a"}, role="assistant"), *HELLO]},
         ["messages[].content[].redacted_thinking"]),
        ("responses", {"client_metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"],
                       "prompt_cache_key": "k", "store": False, "text": {"verbosity": "low"},
                       "reasoning": {"effort": "medium", "summary": "auto"}},
         ["client_metadata", "include", "prompt_cache_key", "text.verbosity", "reasoning.summary",
          "reasoning.effort"]),
        ("responses", {"input": [*HELLO, {"type": "function_call", "call_id": "c", "name": "f",
                                          "arguments": {"a": "b"}}, *HELLO]}, []),
        ("responses", {"tools": [{"type": "web_search", "external_web_access": True}]},
         ["tools[].web_search"]),
        ("responses", {"input": turn({"type": "input_image", "image_url": "data:,"})},
         ["input[].content[].input_image"]),
        ("responses", {"input": [{"type": "reasoning", "id": "rs_1", "summary": [],
                                  "encrypted_content": "x"}, *HELLO]},
         ["input[].encrypted_content"]),
        ("responses", {"input": [{"type": "compaction", "encrypted_content": "x"}, *HELLO]},
         ["input[].compaction"]),
    ],
)  # fmt: skip
def test_what_is_left_aside_is_said(
    model_api: ServedApi, family: str, fields: dict[str, Any], expected: list[str]
) -> None:
    assert sorted(said(model_api, family, fields)) == sorted(expected)


def test_a_text_takes_the_place_of_an_image(mock_api: ServedApi) -> None:
    message = turn({"type": "text", "text": "See: "}, IMAGE_URL)[0]
    answer = mock_api.post(PATHS["chat"], model=MODEL, messages=[message]).json()
    text = answer["choices"][0]["message"]["content"]
    assert "See: [image left out: this model reads text only]" in text


def test_the_text_of_a_document_is_read(model_api: ServedApi) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "hello"}
    messages = turn({"type": "document", "source": source})
    assert said(model_api, "messages", {"messages": messages}) == []
    counts = [
        model_api.post("/v1/messages/count_tokens", model=MODEL, messages=each).json()
        for each in (messages, HELLO)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("is_in_result", [False, True])
@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "search_result", "source": "https://a.b/c", "title": "Paris", "content": [PARIS]},
         "Paris\nhttps://a.b/c\nA city.\n"),
        ({"type": "document", "source": {"type": "content", "content": "A city."}}, "A city."),
        ({"type": "document", "source": {"type": "content", "content": [PARIS, PARIS]}},
         "A city.A city."),
        ({"type": "document", "source": {"type": "content", "content": [PARIS, IMAGE]}},
         "A city.[image left out: this model reads text only]"),
        ({"type": "document", "title": "Paris", "context": None, "source": {
            "type": "text", "media_type": "text/plain", "data": "A city."}}, "Paris\nA city.\n"),
    ],
)  # fmt: skip
def test_texts_within_blocks_are_read(
    mock_api: ServedApi, block: dict[str, Any], text: str, is_in_result: bool
) -> None:
    use = turn({"type": "tool_use", "id": "t", "name": "f", "input": {}}, role="assistant")
    asked = {"type": "text", "text": "Where?"}

    def prompt(*blocks: dict[str, Any]) -> str:
        result = {"type": "tool_result", "tool_use_id": "t", "content": [*blocks]}
        messages = [*use, *turn(result, asked)] if is_in_result else turn(*blocks, asked)
        body = {"model": MODEL, "messages": messages, "max_tokens": 999}
        return str(mock_api.post(PATHS["messages"], **body).json()["content"])

    assert prompt(block) == prompt({"type": "text", "text": text})


def test_images_within_blocks_and_citations_are_said(model_api: ServedApi) -> None:
    source = {"type": "content", "content": [PARIS, IMAGE]}
    document = {"type": "document", "source": source, "citations": {"enabled": True}}
    assert said(model_api, "messages", {"messages": turn(document)}) == [
        "messages[].content[].citations",
        "messages[].content[].image",
    ]


def test_a_deferred_tool_is_offered_once_it_was_found(model_api: ServedApi) -> None:
    search = {"name": "search", "input_schema": SCHEMA}
    hidden = WEATHER | {"defer_loading": True}

    def count(messages: list[dict[str, Any]], *tools: dict[str, Any]) -> int:
        asked = {"model": MODEL, "messages": messages, "tools": [*tools]}
        response = model_api.post("/v1/messages/count_tokens", **asked)
        assert response.status_code == 200, response.text
        return int(response.json()["input_tokens"])

    call = {"type": "tool_use", "id": "t1", "name": "search", "input": {"a": "weather"}}
    found = {"type": "tool_reference", "tool_name": "weather"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [found]}
    history = [*HELLO, *turn(call, role="assistant"), *turn(result)]
    assert count(HELLO, search, hidden) == count(HELLO, search)
    assert count(history, search, hidden) == count(history, search, WEATHER)
    asked = {"tools": [search, hidden], "tool_choice": {"type": "tool", "name": "weather"}}
    assert said(model_api, "messages", asked) == []
    servers_own = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert count(HELLO, search, hidden, servers_own) == count(HELLO, search, WEATHER)


def test_operators_see_what_was_left_aside(model_api: ServedApi) -> None:
    said(model_api, "chat", {"user": "me"})
    newest = model_api.get("/dashboard/requests").json()[0]
    assert newest["ignored"] == ["user"]
    assert 'inference_ignored_fields_total{field="user"}' in model_api.get("/metrics").text
    own = {"colour": 1, "tools": [{"type": "zap"}], "chat_template_kwargs": {"mood": 1}}
    assert sorted(said(model_api, "chat", own)) == [
        "chat_template_kwargs.mood",
        "colour",
        "tools[].zap",
    ]
    counted = re.findall(
        r'inference_ignored_fields_total{field="(.*?)"}', model_api.get("/metrics").text
    )
    assert {"unknown", "tools[].unknown", "chat_template_kwargs"} <= set(counted)
    assert not {"mood", "colour", "zap"} & set(re.findall(r"\w+", " ".join(counted)))  # a client's


def test_a_body_of_fields_that_nobody_knows_is_refused(mock_api: ServedApi) -> None:
    """Each is compared with all that are known."""
    fields = {f"field number {number}": 1 for number in range(65)}
    response = mock_api.post(PATHS["chat"], model=MODEL, messages=HELLO, **fields)
    assert response.status_code == 400
    assert "is one of more than 64 fields that are not known" in response.json()["message"]
    many = [HELLO[0] | {"colour": "blue"} for _ in range(100)]  # the same one, as often as it likes
    assert mock_api.post(PATHS["chat"], model=MODEL, messages=many).status_code == 200


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("messages", {"messages": turn({"type": "redacted_thinking", "data": "x"})}),
        ("messages", {"messages": [{"role": "user", "content": []}]}),
        ("responses", {"input": [{"type": "compaction", "encrypted_content": "x"}]}),
        ("responses", {"input": [{"type": "additional_tools", "tools": []}]}),
    ],
)
def test_a_body_of_which_nothing_is_left_is_refused(
    model_api: ServedApi, family: str, fields: dict[str, Any]
) -> None:
    response = model_api.post(PATHS[family], **{"model": MODEL, **BODIES[family], **fields})
    assert response.status_code == 400, response.text
