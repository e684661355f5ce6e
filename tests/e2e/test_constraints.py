"""Constrained answers of the embedded model: every one of them keeps to its constraint."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from lab.benches.engine.schemas import SCHEMAS
from lab.kit.servers import ServedApi

MODEL = "hearth-tiny"
NUM_REQUESTS = 120
QUESTION: list[Any] = [{"role": "user", "content": "Tell me about Nairobi."}]


@pytest.fixture(scope="module")
def api(model_api: ServedApi) -> ServedApi:
    return model_api


LARK = """
start: colour (" " colour){2} END
colour: "red" | "blue"
END: "!"
"""


def format_of(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_all_answers_fit_their_schemas_whoever_shares_the_step(client: openai.OpenAI) -> None:
    dice = random.Random(4)
    jobs = [(dice.choice(SCHEMAS), dice.choice([0.0, 1.0, 2.0])) for _ in range(NUM_REQUESTS)]

    def ask(job: tuple[dict[str, Any], float]) -> str:
        schema, temperature = job
        answer = client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            response_format=format_of(schema),
            temperature=temperature,
            max_tokens=200,
            seed=len(str(schema)),
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].message.content or ""

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, jobs))
    for (schema, _), answer in zip(jobs, answers, strict=True):
        jsonschema.validate(json.loads(answer), schema)
    alone = [ask(job) for job in jobs[:10]]
    assert alone == answers[:10]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_regular_expression_and_choice(client: openai.OpenAI, is_streamed: bool) -> None:
    for constraint, pattern in (
        ({"regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
        ({"choice": ["Nairobi", "a (b)", "Paris?"]}, r"Nairobi|a \(b\)|Paris\?"),
        ({"json": {"enum": [7, "seven"]}}, '7|"seven"'),
    ):
        answer: Any = client.completions.create(
            model=MODEL,
            prompt="Say it: ",
            extra_body={"structured_outputs": constraint},
            seed=3,
            stream=is_streamed,
        )
        text = "".join(each.choices[0].text for each in (answer if is_streamed else [answer]))
        assert re.fullmatch(pattern, text)


UNENFORCED: list[dict[str, Any]] = [
    {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3, "uniqueItems": True},
    {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3, "contains": {"const": 1}},
    {"enum": [1, 2], "not": {"const": 2}},
    {"enum": [1, 2], "if": {"const": 1}},
    {"type": "object", "maxProperties": 0, "dependentRequired": {"a": ["b"]}},
    {"type": "object", "maxProperties": 0, "unevaluatedProperties": False},
]


@pytest.mark.parametrize("part", UNENFORCED, ids=lambda part: list(part)[-1])
@pytest.mark.parametrize("strict", [None, False, True])
def test_only_a_strict_schema_may_have_no_keyword_that_goes_unheeded(
    api: ServedApi, part: dict[str, Any], strict: bool | None
) -> None:
    schema = {"type": "object", "properties": {"a": part}, "required": ["a"]}
    named = {"name": "answer", "schema": schema, "strict": strict}
    chat = {"response_format": {"type": "json_schema", "json_schema": named}, "max_tokens": 99}
    responses = {"text": {"format": {"type": "json_schema", **named}}, "max_output_tokens": 99}
    for path, fields in (
        ("chat/completions", {"messages": QUESTION, **chat}),
        ("responses", {"input": QUESTION, **responses}),
    ):
        answer = api.post(f"/v1/{path}", model=MODEL, seed=1, **fields)
        assert answer.status_code == (400 if strict else 200)
        text = answer.json().get("message") or (
            answer.json()["choices"][0]["message"]["content"]
            if "choices" in answer.json()
            else answer.json()["output"][0]["content"][0]["text"]
        )
        if strict:
            assert f'Unimplemented keys: ["{list(part)[-1]}"]' in text
        else:
            held = {key: value for key, value in part.items() if key != list(part)[-1]}
            jsonschema.validate(json.loads(text)["a"], held)


def test_objects_are_closed_unless_they_say_otherwise(client: openai.OpenAI) -> None:
    """An object that may always have one more property has no end for a small model."""
    person = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}}
    schema = {
        "type": "object",
        "properties": {
            "person": {"$ref": "#/$defs/person"},
            "either": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
            "all": {"type": "array", "maxItems": 2, "items": person | {"required": ["name"]}},
        },
        "required": ["person", "either", "all"],
        "$defs": {"person": person | {"required": ["name"]}},
    }
    for seed in range(8):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            response_format=format_of(schema),
            temperature=2.0,
            max_tokens=400,
            seed=seed,
        )
        assert answer.choices[0].finish_reason == "stop"
        given = json.loads(answer.choices[0].message.content or "")
        assert set(given) == {"person", "either", "all"}
        assert set(given["person"]) == {"name"}


def test_any_object_is_json(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        response_format={"type": "json_object"},
        max_tokens=300,
        temperature=0.3,
        seed=1,
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    else:
        assert (answer.choices[0].message.content or "").startswith("{")


def test_token_limit_still_ends_a_constrained_answer(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="a",
        max_tokens=5,
        extra_body={"structured_outputs": {"regex": "[ab]{1000}"}},
    )
    assert answer.choices[0].finish_reason == "length"
    assert re.fullmatch("[ab]+", answer.choices[0].text)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": format_of({"type": "colour"})}, "response_format"),
        ({"structured_outputs": {"regex": "(["}}, "structured_outputs"),
        ({"response_format": format_of(nested(130))}, "response_format"),
        ({"structured_outputs": {"json": nested(130)}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"grammar": "start: a"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "hello there"}}, "structured_outputs"),
        ({"guided_grammar": "root ::= nobody"}, "guided_grammar"),
        ({"guided_grammar": 'root ::= "\\'}, "guided_grammar"),
        ({"guided_grammar": "root ::= " + "(" * 9000}, "guided_grammar"),
        ({"guided_grammar": "start: " + "(" * 9000}, "guided_grammar"),
        ({"guided_grammar": "start: <[99999999]>"}, "guided_grammar"),
        ({"guided_grammar": "start: @other"}, "guided_grammar"),
        ({"guided_grammar": "start: start"}, "guided_grammar"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    api: ServedApi, fields: dict[str, Any], param: str
) -> None:
    response = api.post("/v1/chat/completions", model=MODEL, messages=QUESTION, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert api.is_idle()


def test_answer_that_could_only_be_endless_is_the_clients_fault(api: ServedApi) -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    body = {"model": MODEL, "prompt": "a", "structured_outputs": {"json": endless}}
    response = api.post("/v1/completions", **body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "constraint_failed"
    assert len(response.json()["message"]) < 300


def test_model_without_a_tokenizer_file_says_so(mock_api: ServedApi) -> None:
    body = {"model": MODEL, "prompt": "a", "structured_outputs": {"regex": "b"}}
    response = mock_api.post("/v1/completions", **body)
    assert response.status_code == 400
    assert "tokenizer.json" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"guided_choice": ["red", "blue"]}, "red|blue"),
        ({"guided_regex": "[0-9]{3}-[0-9]{2}"}, "[0-9]{3}-[0-9]{2}"),
        ({"guided_json": {"type": "integer"}}, "-?[0-9]+"),
        ({"guided_json": '{"type": "integer"}'}, "-?[0-9]+"),
        ({"guided_grammar": 'root ::= item "-" item\nitem ::= [0-9]{2}'}, "[0-9]{2}-[0-9]{2}"),
        ({"structured_outputs": {"grammar": LARK}}, r"(red|blue)( (red|blue)){2}!"),
    ],
)
def test_older_names_constrain_too(api: ServedApi, fields: dict[str, Any], form: str) -> None:
    answer = api.post("/v1/completions", model=MODEL, prompt="x", max_tokens=40, **fields)
    assert re.fullmatch(form, answer.json()["choices"][0]["text"])
