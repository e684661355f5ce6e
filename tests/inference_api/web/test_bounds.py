"""A body's structure is bounded before it is parsed; its text is not structure."""

import json
from contextlib import suppress

import pytest

from inference_api.apis.responses.body import ResponsesBody
from inference_api.errors import InvalidRequest
from inference_api.web.fields import parse
from inference_api.web.json_object import MAX_MEMBERS, MAX_VALUES, check_structure


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b'{"prompt":[' + b"1," * (MAX_VALUES + 1) + b"1]}", "600000 values"),
        (b'{"prompt":[' + b'",",' * (MAX_VALUES + 1) + b'""]}', "600000 values"),
        (b"{" + b'"":1,' * MAX_MEMBERS + b'"a":1}', "32768 members"),
        (b"[" + b"{}," * MAX_MEMBERS + b"{}]", "32768 objects"),
        (b"[" * (MAX_MEMBERS + 1), "32768 lists"),
    ],
    ids=["numbers", "texts", "members", "objects", "lists"],
)
def test_too_much_structure_is_refused_with_its_bound(body: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"more than {what}.*; send text, or less at once"):
        check_structure(body)


@pytest.mark.parametrize("text", [",", ":", "[", "{", '",', "\\", '\\",{'])
def test_text_is_no_structure(text: str) -> None:
    check_structure(json.dumps({"text": text * (MAX_VALUES + 1)}).encode())


def test_prompts_of_token_ids_are_within_the_bound() -> None:
    check_structure(json.dumps({"prompt": [[1] * 2048] * 256}).encode())


@pytest.mark.parametrize("body", [b'"' * 700_001, b',"' * 700_001, b"\\" * 700_001])
def test_what_is_no_json_is_read_in_one_go(body: bytes) -> None:
    """And left to the parser, unless it is too much."""
    with suppress(InvalidRequest):
        check_structure(body)


def test_a_schema_that_could_not_be_written_again_is_refused() -> None:
    tool = b'{"type": "function", "name": "f", "parameters": {"a": [-1e400]}}'
    body = b'{"model": "m", "input": "a", "tools": [%b]}' % tool
    with pytest.raises(InvalidRequest, match=r"tools\[0\].parameters: has a number beyond any"):
        parse(ResponsesBody, body)
