"""Answers that go on with the last message, and what is refused of it."""

from typing import Any

import pytest

from lab.kit.servers import ServedApi

MODEL = "hearth-tiny"
QUESTION = {"role": "user", "content": "What is the capital of Kenya?"}
BEGUN = {"role": "assistant", "content": "The capital of Kenya"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


def ask(api: ServedApi, path: str, **fields: Any) -> dict[str, Any]:
    response = api.post(path, model=MODEL, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_answer_goes_on_with_the_last_message_on_both_routes(api: ServedApi) -> None:
    fields = {"messages": [QUESTION, BEGUN], "temperature": 0}
    openai = ask(
        api,
        "/v1/chat/completions",
        **fields,
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert openai["choices"][0]["message"]["content"] == " is Nairobi."
    anthropic = ask(api, "/v1/messages", **fields, max_tokens=20)
    assert anthropic["content"][0]["text"] == " is Nairobi."
    assert anthropic["usage"]["input_tokens"] == openai["usage"]["prompt_tokens"]
    again = ask(api, "/v1/chat/completions", **fields)
    assert again["choices"][0]["message"]["content"] != " is Nairobi."


def test_tokenize_ends_as_the_chat_does(api: ServedApi) -> None:
    tokens = {
        (opens, begins): ask(
            api,
            "/tokenize",
            messages=[QUESTION, BEGUN],
            continue_final_message=opens,
            add_generation_prompt=begins,
        )["tokens"]
        for opens, begins in ((True, False), (False, False), (False, True))
    }
    opened, closed, begun = tokens.values()
    assert closed[: len(opened)] == opened
    assert begun[: len(closed)] == closed
    assert len(opened) < len(closed) < len(begun)
    chat = ask(
        api,
        "/v1/chat/completions",
        messages=[QUESTION, BEGUN],
        max_tokens=1,
        add_generation_prompt=False,
    )
    assert chat["usage"]["prompt_tokens"] == len(closed)


def test_tokenize_counts_tools_as_the_chat_does(api: ServedApi) -> None:
    fields: dict[str, Any] = {"messages": [QUESTION], "tools": [TOOL]}
    tokens = ask(api, "/tokenize", **fields)
    chat = ask(api, "/v1/chat/completions", **fields, max_tokens=1)
    assert tokens["count"] == chat["usage"]["prompt_tokens"]
    without = ask(api, "/tokenize", **fields, tool_choice="none")
    assert without["count"] == ask(api, "/tokenize", messages=[QUESTION])["count"] < tokens["count"]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/chat/completions",
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message: comes without add_generation_prompt; give one of the two.",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [QUESTION, BEGUN | {"tool_calls": [CALL]}],
                "continue_final_message": True,
            },
            "continue_final_message: goes on with a text, which the last message is not; end with",
        ),
        (
            "/tokenize",
            {
                "messages": [QUESTION, {"role": "tool", "content": "a", "tool_call_id": "c"}],
                "continue_final_message": True,
            },
            "continue_final_message: goes on with a text",
        ),
        (
            "/tokenize",
            {"messages": None, "prompt": "a", "tools": [TOOL]},
            "tools: comes with messages; leave it out or give them.",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 4,
                "messages": [
                    QUESTION,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
                    },
                ],
            },
            "messages: the last is the assistant's and does not end with a text to go on with",
        ),
    ],
)
def test_what_has_no_text_to_go_on_with_is_refused(
    api: ServedApi, path: str, fields: dict[str, Any], message: str
) -> None:
    response = api.post(path, **{"model": MODEL, "messages": [QUESTION, BEGUN]} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"].startswith(message)
