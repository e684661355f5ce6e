"""Tools on a model of random weights: whatever it draws, what it has to call is called."""

import json
import re
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from lab.kit.servers import ROOT, ServedApi

MODEL = "random"
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "kelvin"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {"terms": {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 4}},
    "required": ["terms"],
}
SCHEMAS: dict[str, Any] = {
    "weather": WEATHER,
    "add-up": SUM,
    "now": {"type": "object", "properties": {}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "add-up", "parameters": SUM, "strict": True}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]


@pytest.fixture(scope="module")
def api(tools_api: ServedApi) -> ServedApi:
    return tools_api


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "seed": 1}
    return client.chat.completions.create(**asked | {"tool_choice": "required"} | fields)


def check_arguments(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def check(calls: Any) -> None:
    assert calls
    for call in calls:
        check_arguments(call.function.name, call.function.arguments)


def test_required_calls_are_valid_whatever_is_drawn(client: openai.OpenAI) -> None:
    choices = ask(client, n=12).choices
    for choice in choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        check(choice.message.tool_calls)
    names = {call.function.name for choice in choices for call in choice.message.tool_calls}
    assert names == set(SCHEMAS)
    assert max(len(choice.message.tool_calls) for choice in choices) > 1


def test_one_call_where_several_are_not_wanted(client: openai.OpenAI) -> None:
    for choice in ask(client, n=6, parallel_tool_calls=False, temperature=0.0).choices:
        (call,) = choice.message.tool_calls
        check([call])


def test_named_function_is_called_and_nothing_else(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    (choice,) = ask(client, tool_choice=named).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})
    assert choice.finish_reason == "stop"  # as OpenAI has it


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "add-up"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    for answer in ask(client, n=4, tool_choice=choice).choices:
        check(answer.message.tool_calls)
        assert {call.function.name for call in answer.message.tool_calls} == {"add-up"}


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    whole = ask(client, n=2)
    calls: dict[int, list[Any]] = {0: [], 1: []}
    finish: dict[int, str] = {}
    num_roles = 0
    for chunk in ask(client, n=2, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            num_roles += choice.delta.role is not None
            finish |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
            of_choice = calls[choice.index]
            for delta in choice.delta.tool_calls or ():
                assert delta.function is not None
                if delta.index == len(of_choice):  # its first has id, type and name; others not
                    assert (delta.type, bool(delta.id)) == ("function", True)
                    of_choice.append([delta.function.name, ""])
                else:
                    assert (delta.id, delta.function.name) == (None, None)
                of_choice[delta.index][1] += delta.function.arguments
    assert chunk.usage is not None
    assert chunk.usage.completion_tokens == whole.usage.completion_tokens
    assert (num_roles, finish) == (2, {0: "tool_calls", 1: "tool_calls"})
    for choice in whole.choices:
        given = [[c.function.name, c.function.arguments] for c in choice.message.tool_calls]
        assert calls[choice.index] == given


def test_the_stream_helper_of_openai_reads_calls(client: openai.OpenAI) -> None:
    class Weather(BaseModel):
        city: str = Field(max_length=8)
        is_now: bool

    tool = openai.pydantic_function_tool(Weather)
    asked: Any = {"model": MODEL, "messages": QUESTION, "tools": [tool], "seed": 2}
    with client.chat.completions.stream(**asked, tool_choice="required") as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion().choices[0].message
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert all(isinstance(c.function.parsed_arguments, Weather) for c in answer.tool_calls or ())
    parsed = client.chat.completions.parse(**asked, tool_choice="required").choices[0].message
    assert [c.function for c in parsed.tool_calls or ()] == [
        c.function for c in answer.tool_calls or ()
    ]


def test_calls_and_results_go_back_to_the_model(client: openai.OpenAI) -> None:
    message = ask(client).choices[0].message
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": "12 </tool_call>"}
        for call in message.tool_calls
    ]
    again = ask(client, messages=[*QUESTION, message, *results], tool_choice="none", max_tokens=4)
    assert again.choices[0].finish_reason == "length"
    assert again.choices[0].message.tool_calls is None


def test_the_templates_own_options_reach_it(client: openai.OpenAI) -> None:
    plain, opened = (
        ask(client, extra_body={"chat_template_kwargs": options}, max_tokens=1).usage
        for options in ({}, {"opening": "Well, </s>"})
    )
    assert opened.prompt_tokens == plain.prompt_tokens + len("Well, </s>")


def test_auto_may_answer_in_text(client: openai.OpenAI) -> None:
    (choice,) = ask(client, tool_choice="auto", max_tokens=20, logprobs=True).choices
    assert choice.finish_reason == "length"
    assert choice.message.content
    assert len(choice.logprobs.content) == 20


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice",
         "'x' is none of the tools; give one of weather"),
        ({"tools": []}, "tool_choice", "asks for calls, and there are no tools"),
        ({"tools": TOOLS * 43}, "tools", "has 129 entries; give 128 or fewer"),
        ({"tools": TOOLS * 2}, "tools", "is there more than once"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "name"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tool_choice",
         "there are no tools of a type that is served; give functions"),
        ({"functions": [{"name": "a"}]}, "functions", "is not served; give tools, which took its"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "a"}}]}, "messages",
         "function_call: is not served; give tool_choice, or tool_calls in a message, which"),
        ({"tool_choice": "any"}, "tool_choice", "give 'none', 'auto' or 'required'"),
        ({"min_tokens": 4}, "min_tokens", "calls that are required have an end"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs",
         "is not an option of a template"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs", "option"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "tool_call_id: is missing"),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "b"}]}, "messages",
         "is of messages of role tool"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(
    api: ServedApi, fields: dict[str, Any], param: str, message: str
) -> None:
    body = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "tool_choice": "required"}
    response = api.post("/v1/chat/completions", **body | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert message in response.json()["message"]


def test_deep_wide_and_large_schemas_are_refused(api: ServedApi) -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"properties": {"a": deep}}
    for parameters, message in (
        (deep, "tools[0].function.parameters: is nested more than 64 levels deep; flatten it."),
        ({"type": "array"}, "tools[0].function.parameters: are no object's; give a schema of type"),
        (
            {"properties": {f"p{n}": {} for n in range(501)}},
            "parameters: has an object of 501 mem",
        ),
        ({"description": "x" * 300_000}, "tools: schemas of 30"),
    ):
        tool = {"type": "function", "function": {"name": "a", "parameters": parameters}}
        response = api.post("/v1/chat/completions", model=MODEL, messages=QUESTION, tools=[tool])
        assert response.status_code == 400
        assert message in response.json()["message"]


def test_the_documented_example_runs_as_it_is(
    model_api: ServedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "tools.md").read_text(), re.DOTALL)
    assert example is not None
    code = example[1].replace("http://127.0.0.1:7000", model_api.url)
    names: dict[str, Any] = {}
    exec(code, names)
    names["client"].close()
    assert names["result"].startswith("12 ")
    assert capsys.readouterr().out.strip() == names["answer"].choices[0].message.content.strip()


def test_a_call_that_is_cut_says_so(client: openai.OpenAI) -> None:
    for choice in ask(client, n=2, max_tokens=45).choices:
        assert choice.finish_reason == "length"


def test_a_model_without_a_template_for_tools_calls_in_json(model_api: ServedApi) -> None:
    with openai.OpenAI(base_url=f"{model_api.url}/v1", api_key="none", max_retries=0) as client:
        answer = ask(client, model="hearth-tiny", temperature=0.5)
    assert answer.choices[0].finish_reason == "tool_calls"
    check(answer.choices[0].message.tool_calls)
