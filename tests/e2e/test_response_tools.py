"""Tools of `/v1/responses` that are no plain functions, as coding agents send them."""

import json
import re
from typing import Any

import openai
import pytest

from lab.kit.servers import ServedApi
from tests.e2e.test_responses import events_of

MODEL = "hearth-tiny"
LARK = """start: "*** Begin Patch\\n" line{1,3} "*** End Patch"
line: ("+" | "-" | " ") WORD "\\n" -> line
WORD: /[a-z]{1,6}/
"""
PATCH = r"\*\*\* Begin Patch\n([+ -][a-z]{1,6}\n){1,3}\*\*\* End Patch"
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": LARK}
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": GRAMMAR}
CLOSE = {
    "type": "function",
    "name": "close",
    "strict": False,
    "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "Others.", "tools": [CLOSE]}


def asked(tool: dict[str, Any], **more: Any) -> dict[str, Any]:
    one = {"tool_choice": "required", "parallel_tool_calls": False}
    return {"model": MODEL, "input": "hi", "tools": [tool], **one, **more}


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


@pytest.mark.parametrize("seed", range(4))
def test_an_input_with_a_grammar_is_valid_by_construction(api: ServedApi, seed: int) -> None:
    body = asked(CUSTOM, temperature=2, seed=seed)
    events = events_of(api.post("/v1/responses", **body, stream=True).content)
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    response = events[-1]["response"]
    (call,) = response["output"]
    assert re.fullmatch(PATCH, call["input"])
    assert "".join(deltas) == done["input"] == call["input"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "apply_patch")
    assert (call["status"], response["status"]) == ("completed", "completed")
    item = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."}
    again = [{"role": "user", "content": "hi"}, call, item]
    assert api.post("/v1/responses", **body | {"input": again}).ok


def test_a_regular_expression_is_a_grammar_too(api: ServedApi) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{2}:[0-9]{2}"}
    tool = {"type": "custom", "name": "at", "format": form}
    (call,) = api.post("/v1/responses", **asked(tool)).json()["output"]
    assert re.fullmatch("[0-9]{2}:[0-9]{2}", call["input"])


def test_calls_in_a_namespace_say_it(api: ServedApi) -> None:
    with (
        openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(**asked(NAMESPACE)) as stream,
    ):
        (call,) = stream.get_final_response().output
    assert call.to_dict()["namespace"] == "agents"
    assert (call.type, call.name) == ("function_call", "close")
    assert json.loads(call.arguments)["n"] in (1, 2)
    answered = {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}
    again = [{"role": "user", "content": "hi"}, call.to_dict(), answered]
    assert api.post("/v1/responses", **asked(NAMESPACE, input=again)).ok
    named = {"type": "function", "name": "close", "namespace": "agents"}
    assert api.post("/v1/responses", **asked(NAMESPACE, tool_choice=named)).ok


def test_a_local_shell_is_called_by_its_own_item(api: ServedApi) -> None:
    body = asked({"type": "local_shell"}, max_output_tokens=200)
    response = api.post("/v1/responses", **body).json()
    (call,) = response["output"]
    assert (call["type"], call["action"]["type"]) == ("local_shell_call", "exec")
    assert isinstance(call["action"]["command"], list)
    output = {"type": "local_shell_call_output", "call_id": call["call_id"], "output": "ok"}
    again = [{"role": "user", "content": "hi"}, call, output]
    assert api.post("/v1/responses", **body | {"input": again}).ok


def test_a_search_of_the_clients_brings_tools(api: ServedApi) -> None:
    search = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
    (call,) = api.post("/v1/responses", **asked(search)).json()["output"]
    assert (call["type"], call["execution"]) == ("tool_search_call", "client")
    assert isinstance(call["arguments"], dict)
    found = {"type": "tool_search_output", "call_id": call["call_id"], "tools": [NAMESPACE]}
    body = asked(search, input=[{"role": "user", "content": "hi"}, call, found])
    named = {"type": "function", "name": "close", "namespace": "agents"}
    (call,) = api.post("/v1/responses", **body | {"tool_choice": named}).json()["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "agents", "close")


def test_an_item_may_bring_tools(api: ServedApi) -> None:
    inner = {"type": "namespace", "name": "functions", "tools": [CUSTOM]}
    item = {"type": "additional_tools", "role": "developer", "tools": [inner]}
    body = {"model": MODEL, "input": [item, {"role": "user", "content": "hi"}]}
    (call,) = api.post("/v1/responses", **body, tool_choice="required").json()["output"]
    assert (call["type"], call["namespace"]) == ("custom_tool_call", "functions")
    assert re.fullmatch(PATCH, call["input"])
    many = [NAMESPACE | {"name": f"n{n}", "tools": [CLOSE] * 1} for n in range(129)]
    item = {"type": "additional_tools", "tools": many[:100]}
    response = api.post("/v1/responses", **body | {"input": [item, item], "tools": many[100:129]})
    assert "tools: are 129 in all; give 128 or fewer" in response.json()["message"]


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (CUSTOM | {"format": {"type": "grammar", "syntax": "lark"}}, "tools[0].format.definition"),
        (
            CUSTOM | {"format": GRAMMAR | {"definition": "start: nobody"}},
            "tool_choice cannot be used: the format of apply_patch: ",
        ),
        (
            CLOSE | {"parameters": {"properties": {"a": {"pattern": "(?=a)b"}}}},
            "tool_choice cannot be used: the schema of close, property a: ",
        ),
        (CUSTOM | {"format": GRAMMAR | {"definition": "x" * 70_000}}, "tools[0].format.definition"),
        (NAMESPACE | {"name": "a b"}, "tools[0].name"),
        (NAMESPACE | {"tools": [CLOSE] * 129}, "tools[0].tools: has 129 entries"),
    ],
)
def test_refusals_name_the_tool(api: ServedApi, tool: dict[str, Any], message: str) -> None:
    response = api.post("/v1/responses", **asked(tool))
    assert response.status_code == 400, response.text
    assert response.json()["message"].startswith(message)
    assert " | " not in response.json()["message"], "the engine's own grammar"
