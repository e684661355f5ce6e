"""Grammars of clients: what they allow, and that none of them takes the server with it."""

import random
import re
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import gbnf_to_lark

from inference_api.errors import ConstraintFailed, InvalidRequest
from inference_api.request import ConstraintSpec
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.call_grammars import text_rule
from inference_api.text.client_grammars import lark_of
from inference_api.text.constraints import GrammarCompiler
from inference_api.text.tokens import HuggingFaceTokenizer, load_tokenizer

STOP = 1
JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ( string ":" value ("," string ":" value){0,2} )? "}"
array  ::= "[" ( value ("," value){0,2} )? "]"
string ::= "\"" [a-z]{0,6} "\""   # short, so that it ends
number ::= "-"? [0-9]{1,3}
"""


@cache
def tokenizer() -> HuggingFaceTokenizer:
    return load_tokenizer(EMBEDDED_MODEL, frozenset({STOP}))


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), vocab_size=4096)


def spec(text: str) -> ConstraintSpec:
    return ConstraintSpec("structured_outputs", "grammar", text)


def walked(text: str, seed: int, max_tokens: int = 60) -> str | None:
    """Returns what a random way through the grammar says; None if it did not come to an end."""
    dice, constraint = random.Random(seed), compiler().compile(spec(text))()
    token_ids: list[int] = []
    while not constraint.is_complete and len(token_ids) < max_tokens:
        bits = np.unpackbits(np.frombuffer(constraint.allowed, np.uint8), bitorder="little")
        token_id = STOP if bits[STOP] else dice.choice(np.flatnonzero(bits).tolist())
        if token_id == STOP:
            break
        token_ids.append(token_id)
        constraint.accept(token_id)
    else:
        if not constraint.is_complete:
            return None
    return tokenizer().decode(token_ids)


def test_random_answers_keep_to_a_grammar_in_either_form() -> None:
    lark = 'start: "a" (B | c)\nB: /[xy]{2}/\nc: "-" c | "."\n'
    forms = {
        lark: r"a([xy]{2}|-*\.)",
        'root ::= "a" ([xy][xy] | c)\nc ::= "-" c | "."': r"a([xy]{2}|-*\.)",
        JSON_GBNF: r"\{.*\}",
    }
    for text, form in forms.items():
        said = [each for seed in range(4) if (each := walked(text, seed)) is not None]
        assert said
        assert all(re.fullmatch(form, each) for each in said)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("start: nobody", "unknown name"),
        ("root ::= nobody", "neither Lark nor GBNF: Rule 'nobody' not found"),
        ("a ::= b", "neither Lark nor GBNF: Rule 'b' not found"),
        ("root", "neither Lark nor GBNF: Expected ::="),
        ('root ::= "\\', "neither Lark nor GBNF"),
        ("root ::= " + "(" * 30_000, "neither Lark nor GBNF"),
        ("start: " + "(" * 30_000, "too deeply nested"),
        ("start: /" + "(" * 30_000 + "/", "invalid regex"),
        ("start: %json " + '{"items":' * 3_000, ""),
        ("start: %lark {\n" * 250, ""),
        ("%llguidance {", ""),
        ("\0", "neither Lark nor GBNF"),
    ],
)
def test_bad_grammars_are_refused_in_the_engines_words(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiler().compile(spec(text))
    assert str(caught.value).startswith("structured_outputs cannot be used: ")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


@given(st.text(alphabet='rotab-_:= \n|()[]{}*+?,1"\\/xuU^.', max_size=40))
def test_whatever_a_text_is_the_client_hears_of_it(text: str) -> None:
    for tried in (text, f"root ::= {text}", f"root ::= a\na ::= {text}"):
        with suppress(InvalidRequest):
            assert isinstance(lark_of(spec(tried)), str)


def test_fault_of_the_converter_is_none_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> str:
        raise AttributeError("of this test")

    monkeypatch.setattr(gbnf_to_lark, "any_to_lark", fail)
    with pytest.raises(AttributeError):
        lark_of(spec("root ::= a"))


@pytest.mark.parametrize(
    "text",
    [
        "start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(254)) + '\nr254: "b"',
        "start: T0\n" + "\n".join(f'T{n}: ("a" T{n + 1})?' for n in range(254)) + '\nT254: "b"',
        "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(254)) + '\nr254 ::= "b"',
    ],
)
def test_as_many_rules_as_there_may_be_do_no_harm_in_a_chain(text: str) -> None:
    assert compiler().compile(spec(text))().allowed.strip(b"\0")


@pytest.mark.parametrize(
    "text",
    [
        'root ::= r0 root\nr0 ::= "' + "a" * 250 + '"',  # forced, and without an end
        "start: " + " | ".join("s" + " s" * n for n in range(100)) + '\ns: "a"* | s s',
    ],
)
def test_step_that_takes_too_much_is_the_clients_fault(text: str) -> None:
    with pytest.raises((InvalidRequest, ConstraintFailed)):
        walked(text, seed=0)


def test_grammar_stands_behind_a_thought_and_beside_calls() -> None:
    rule = text_rule(spec(JSON_GBNF))
    inner = lark_of(spec(JSON_GBNF))
    assert rule == "%lark {\n" + inner + "\n}"


def test_without_the_engine_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance.gbnf_to_lark", None)
    with pytest.raises(InvalidRequest, match=r"guided_grammar needs llguidance, which is not"):
        lark_of(replace(spec("start: a"), field="guided_grammar"))
