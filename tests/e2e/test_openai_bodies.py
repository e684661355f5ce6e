"""Which bodies of OpenAI's routes are taken, and how the others are refused, on the mock server."""

from typing import Any

import openai
import pytest

from lab.kit.servers import ServedApi

MODEL = "hearth-tiny"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ECHO = "User: hello\nAI: "  # what the mock makes of it
# What vLLM's clients send where they ask for nothing.
NEUTRAL_OF_VLLM: dict[str, Any] = {
    "allowed_token_ids": None,
    "bad_words": [],
    "detokenize": True,
    "guided_json": None,
    "include_stop_str_in_output": False,
    "length_penalty": 1.0,
    "logit_bias": {},
    "min_tokens": 0,
    "priority": 0,
    "speculation": None,
    "prompt_logprobs": None,
    "return_token_ids": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "stop_token_ids": [],
    "structured_outputs": None,
    "truncate_prompt_tokens": None,
    "unknown_but_null": None,
    "use_beam_search": False,
}
NEUTRAL = NEUTRAL_OF_VLLM | {
    "add_generation_prompt": True,
    "chat_template_kwargs": {},
    "continue_final_message": False,
    "echo": False,
    "function_call": "none",
    "modalities": ["text"],
    "prompt_cache_options": {"ttl": "1h"},
    "reasoning_effort": None,
    "response_format": {"type": "text", "json_schema": None},
    "stream_options": None,
    "top_logprobs": 0,
}
# What clients add to a message that they keep.
KEPT: dict[str, Any] = {
    "annotations": [{"type": "url_citation"}],
    "audio": None,
    "function_call": None,
    "name": None,
    "provider_specific_fields": {"refusal": None},
    "reasoning_content": None,
    "refusal": None,
    "thinking_blocks": [],
    "tool_calls": [],
}


@pytest.fixture(scope="module")
def api(mock_api: ServedApi) -> ServedApi:
    return mock_api


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"temperature": 3.0}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 33}, "n"),
        ({"extra_body": {"priority": 1001}}, "priority"),
        ({"extra_body": {"speculation": "ngram"}}, "speculation"),
        ({"extra_body": {"speculation": ["off"]}}, "speculation"),
        ({"stop": ["a"] * 9}, "stop"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": MODEL, "messages": HELLO} | fields))
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    "extra",
    [
        {"tool_calls": [{"id": "1", "type": "function"}]},
        {"content": [{"type": "picture"}]},
        {"role": "function"},
        {"tool_call_id": "1"},
    ],
)
def test_what_a_message_may_not_hold_is_refused_with_its_place(
    api: ServedApi, extra: dict[str, Any]
) -> None:
    messages = [HELLO[0], {"role": "assistant", "content": "Hello!", **extra}]
    response = api.post("/v1/chat/completions", model=MODEL, messages=messages)
    error = response.json()["error"]
    (name,) = extra
    assert (response.status_code, error["param"]) == (400, "messages")
    assert error["message"].startswith(f"messages[1].{name}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "prompt: give a text, token ids, or a list of one or more of either."),
        ({"prompt": [-1]}, "prompt[0]: is -1; give 0 or more."),
        ({"prompt": ["a", 1]}, "prompt[1]: is 1; give a text in quotes."),
        ({"prompt": [[1], []]}, "prompt[1]: has 0 entries; give 1 or more."),
        ({"prompt": ["a"] * 257}, "prompt: has 257 entries; give 256 or fewer."),
        ({"prompt": ["a"] * 200, "n": 2}, "n: is 2 for each of 200 prompts; give prompts times"),
        ({"stop": ["a"] * 9}, "stop: has 9 entries; give 8 or fewer."),
        (
            {"logit_bias": dict.fromkeys(map(str, range(1025)), 1)},
            "logit_bias: has 1025 entries; give 1024 or fewer.",
        ),
        ({"stop": 5}, "stop: give a text or a list of 8 texts at most."),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens: is 5, above max_tokens, 4; lower it."),
        ({"min_tokens": -1}, "min_tokens: is -1; give 0 or more."),
        ({"min_tokens": 2.5}, "min_tokens: is 2.5; give an integer."),
        ({"temperature": 3.0}, "temperature: is 3; give 2 or less."),
        (
            {"stop_token_ids": [10**6]},
            "stop_token_ids: 1000000 is no token id of this model; give 0 to",
        ),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids: has 65 entries; give 64 or fewer."),
        (
            {"guided_regex": "a", "structured_outputs": {"regex": "a"}},
            "Give only one of structured_outputs and guided_regex.",
        ),
        (
            {"guided_choice": ["a"], "min_tokens": 1},
            "min_tokens: a constrained answer has an end; leave it out.",
        ),
        (
            {"guided_grammar": "root ::= a", "guided_regex": "a"},
            "Give only one of guided_regex and guided_grammar.",
        ),
        ({"guided_grammar": "x" * 32_769}, "guided_grammar: has 32769 bytes; give 32768 or fewer."),
        (
            {"structured_outputs": {"grammar": "a: b\n" * 257}},
            "structured_outputs.grammar: has 257 lines with colons, as rules begin; give 256 or",
        ),
        ({"guided_regex": "é" * 40_000}, "guided_regex: has 80000 bytes; give 65536 or fewer."),
        (
            {"structured_outputs": {"choice": ["a" * 40_000] * 2}},
            "structured_outputs.choice: has 80000 bytes; give 65536 or fewer.",
        ),
        (
            {"guided_json": "[" * 90_000},
            "guided_json: is a text and no JSON object; give a schema.",
        ),
        (
            {"guided_json": {"enum": ["a" * 270_000]}},
            "guided_json: has 270014 bytes; give 262144 or fewer.",
        ),
        (
            {"structured_outputs": {"json": {"properties": {str(n): {} for n in range(501)}}}},
            "structured_outputs.json: has an object of 501 members; give 500 or fewer.",
        ),
        (
            {"temperature": 10**400},
            "temperature: is Infinity; give 2 or less.",
        ),
        ({"top_p": 10**400}, "top_p: is Infinity; give 1 or less."),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias: '999999999"),
        ({"model": 3}, "model: is 3; give a text in quotes."),
        ({"temprature": 1}, "temprature: is not known (did you mean temperature?); correct it"),
    ],
)
def test_refusals_name_field_bound_and_remedy(
    api: ServedApi, fields: dict[str, Any], message: str
) -> None:
    response = api.post("/v1/completions", **{"model": MODEL, "prompt": "a", **fields})
    assert response.status_code == 400
    assert response.json()["message"].startswith(message)
    assert len(response.json()["message"]) < 200


def test_messages_may_not_be_empty(api: ServedApi) -> None:
    for path in ("/v1/tokenize", "/v1/chat/completions"):
        response = api.post(path, model=MODEL, messages=[])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_tokens_beyond_the_context_are_cut(api: ServedApi) -> None:
    """The mock's answer to 1500 bytes is 1500 tokens, of which 548 fit."""
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 32_000}
    turn = {"role": "user", "content": "a" * 1500}
    for path, prompt in (
        ("/v1/completions", {"prompt": "a" * 1500}),
        ("/v1/chat/completions", {"messages": [turn]}),
    ):
        answer = api.post(path, **asked, **prompt).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 2048
    assert api.post("/predictions/hearth-tiny", text="a" * 2000, max_tokens=2048).ok


def test_what_asks_for_nothing_is_accepted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        user="me",
        tools=[],
        logprobs=False,
        response_format={"type": "text"},
        metadata={"a": "b"},
        extra_body=NEUTRAL,
    )
    assert answer.choices[0].message.content == ECHO
    completion = client.completions.create(
        model=MODEL, prompt="abc", best_of=1, suffix="", extra_body=NEUTRAL_OF_VLLM
    )
    assert completion.choices[0].text == "abc"


def test_an_answer_that_had_no_text_is_taken_back(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, stop="User") as stream:
        silent: Any = stream.get_final_completion().choices[0].message
    assert silent.content is None
    thought: Any = {"role": "assistant", "content": None, "reasoning_content": "Well."}
    no_parts: Any = {"role": "assistant", "content": []}
    for message in (silent, silent.to_dict(), thought, no_parts):
        again = client.chat.completions.create(model=MODEL, messages=[*HELLO, message, *HELLO])
        assert again.choices[0].message.content == f"User: hello\nAI: \n{ECHO}"
    for role in ("user", "system", "tool"):
        empty: Any = {"role": role, "content": None}
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content: is missing"):
            client.chat.completions.create(model=MODEL, messages=[empty])
    for role in ("user", "system", "developer"):
        empty = {"role": role, "content": []}
        with pytest.raises(openai.BadRequestError, match=r"content: is an empty list; give"):
            client.chat.completions.create(model=MODEL, messages=[empty])


def test_a_tool_may_answer_with_no_parts(client: openai.OpenAI) -> None:
    function = {"name": "f", "arguments": "{}"}
    messages: Any = [
        {"role": "assistant", "content": [], "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "content": [], "tool_call_id": "1"},
    ]
    again = client.chat.completions.create(model=MODEL, messages=messages)
    assert "Result of f:\n" in (again.choices[0].message.content or "")


def test_calls_are_taken_back_as_the_client_has_parsed_them(client: openai.OpenAI) -> None:
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {"a": 1}}
    calls = [{"index": 0, "id": "1", "type": "function", "function": function}]
    messages: Any = [
        {"role": "assistant", "content": None, "tool_calls": calls, "parsed": None},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    again = client.chat.completions.create(model=MODEL, messages=messages)
    assert "Result of f:\n2" in (again.choices[0].message.content or "")


def test_answers_are_taken_back_as_the_client_dumps_them(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    message: Any = answer.choices[0].message
    for dump in (message, message.model_dump(), message.to_dict(), message.model_dump() | KEPT):
        again = client.chat.completions.create(model=MODEL, messages=[*HELLO, dump, *HELLO])
        assert again.choices[0].message.content == f"User: hello\nAI: {ECHO}\n{ECHO}"
    refusal: Any = {"role": "assistant", "content": None, "refusal": "I cannot."}
    again = client.chat.completions.create(model=MODEL, messages=[*HELLO, refusal, *HELLO])
    assert again.choices[0].message.content == f"User: hello\nAI: I cannot.\n{ECHO}"
