"""What a row does with a constraint, and what is said where there is none to be had."""

import json
import sys
from collections.abc import Sequence
from random import Random
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.rows import Draft, UserRow
from inference_api.errors import ConstraintFailed, InvalidRequest
from inference_api.request import (
    Constraint,
    ConstraintSpec,
    FinishReason,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SessionId,
)
from inference_api.runner import Drawn
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.constraints import GrammarCompiler
from inference_api.text.tokens import load_tokenizer
from inference_api.web.constraints import schema_constraint
from tests.inference_api.core.row_tables import make_rows

REGEX = ConstraintSpec("structured_outputs", "regex", "[ab]{2}")


class Scripted:
    """Complete after two tokens; fails at token 9."""

    def __init__(self) -> None:
        self.allowed = b"\xff"
        self.is_complete = False
        self._taken = 0

    def accept(self, token_id: int) -> None:
        if token_id == 9:
            raise ConstraintFailed("nine")
        self._taken += 1
        self.is_complete = self._taken == 2

    def allowed_after(self, token_ids: Sequence[int]) -> bytes | None:
        return bytes(token_ids)


def constrained_row() -> UserRow:
    request = GenerationRequest(
        OutputQueue(SessionId("s"), "m"), "m", (1,), GenerationParams(9), grammar=Scripted
    )
    return make_rows().assign(request, max_seq_len=20, now_s=0.0)


def test_complete_answer_ends_without_an_end_token() -> None:
    row = constrained_row()
    assert row.take_step().draws[0].allowed == b"\xff"
    assert row.accept([Drawn(1)], batch_size=1).finish_reason is None
    assert row.accept([Drawn(2)], batch_size=1).finish_reason is FinishReason.STOP


def test_grammar_that_fails_ends_its_own_row_with_an_error() -> None:
    event = constrained_row().accept([Drawn(9)], batch_size=1)
    assert event.finish_reason is FinishReason.ERROR
    assert isinstance(event.error, ConstraintFailed)


def test_every_draw_of_a_draft_keeps_to_the_grammar_along_its_branch() -> None:
    step = constrained_row().take_step(Draft((1, 2, 3), (-1, 0, 0)))
    assert [draw.allowed for draw in step.draws] == [b"\xff", b"\1", b"\1\2", b"\1\3"]


def test_answer_that_is_complete_in_the_middle_of_a_step_ends_there() -> None:
    event = constrained_row().accept([Drawn(1), Drawn(2), Drawn(3)], batch_size=1)
    assert (event.token_ids, event.finish_reason) == ((1, 2), FinishReason.STOP)


def test_looking_ahead_allows_what_going_there_would() -> None:
    tokenizer = load_tokenizer(EMBEDDED_MODEL, frozenset({0}))
    grammar = GrammarCompiler(tokenizer, vocab_size=4096).compile(REGEX)
    constraint, beside = grammar(), grammar()
    (a,) = tokenizer.encode("a")[-1:]
    (c,) = tokenizer.encode("c")[-1:]
    before = constraint.allowed
    ahead = constraint.allowed_after([a])
    assert constraint.allowed_after([a, a]) is None, "nothing may follow"
    assert constraint.allowed_after([c]) is None, "it is not allowed"
    assert constraint.allowed == before
    beside.accept(a)
    assert ahead == beside.allowed


def test_same_grammar_is_compiled_once_and_followed_apart() -> None:
    tokenizer = load_tokenizer(EMBEDDED_MODEL, frozenset({0}))
    compiler = GrammarCompiler(tokenizer, vocab_size=4096)
    grammar = compiler.compile(REGEX)
    assert compiler.compile(ConstraintSpec("structured_outputs", "regex", "[ab]{2}")) is grammar
    first, second = grammar(), grammar()
    (a,) = tokenizer.encode("a")[-1:]
    first.accept(a)
    first.accept(a)
    assert first.is_complete
    assert not second.is_complete


@pytest.mark.parametrize("kind", ["regex", "json_schema"])
def test_pattern_whose_states_multiply_ends_its_own_row(
    kind: Literal["regex", "json_schema"],
) -> None:
    pattern = "[a-z ]*a[a-z ]{200}"
    text = pattern if kind == "regex" else json.dumps({"type": "string", "pattern": f"^{pattern}$"})
    tokenizer = load_tokenizer(EMBEDDED_MODEL, frozenset({0}))
    compiler = GrammarCompiler(tokenizer, vocab_size=4096)
    constraint = compiler.compile(ConstraintSpec("guided_regex", kind, text))()
    with pytest.raises(ConstraintFailed, match="simplify it: lexer error: too many states"):
        _follow_at_random(constraint, 1000)


def _follow_at_random(constraint: Constraint, num_tokens: int) -> None:
    draw = Random(1)
    for _ in range(num_tokens):
        bits = np.unpackbits(np.frombuffer(constraint.allowed, np.uint8), bitorder="little")
        constraint.accept(int(draw.choice(np.flatnonzero(bits))))


@pytest.mark.parametrize(
    "text",
    [
        '{"type": Infinity}', '{"type": "colour"}', '{"$ref": "#/nowhere"}', '{"$ref": "#"}',
        json.dumps({"required": "é" * 300}, ensure_ascii=False),  # at which the library panics
    ],
)  # fmt: skip
def test_schema_that_cannot_be_read_is_refused(text: str) -> None:
    compiler = GrammarCompiler(load_tokenizer(EMBEDDED_MODEL, frozenset({0})), vocab_size=4096)
    with pytest.raises(InvalidRequest, match="response_format cannot be used: "):
        compiler.compile(ConstraintSpec("response_format", "json_schema", text))


DRAFT = "json-schema.org/draft"


@given(
    st.sampled_from([f"http://{DRAFT}-{number}/schema#" for number in ("03", "04", "07", "99")])
    | st.sampled_from([f"https://{DRAFT}/{year}/schema" for year in ("2019-09", "2020-12", "next")])
    | st.sampled_from(["http://json-schema.org/schema#", "https://spec.openapis.org/oas/3.1/base"])
    | st.text()
    | st.none()
)
def test_a_schema_of_any_dialect_is_read(dialect: str | None) -> None:
    compiler = GrammarCompiler(load_tokenizer(EMBEDDED_MODEL, frozenset({0})), vocab_size=4096)
    inner = {"$schema": dialect, "type": "integer"}
    outer = {"$schema": dialect, "properties": {"a": inner}, "required": ["a"]}
    constraint = schema_constraint("response_format", outer)
    assert compiler.compile(constraint)().allowed


def test_pattern_that_cannot_be_read_is_refused_with_what_is_wrong_in_it() -> None:
    compiler = GrammarCompiler(load_tokenizer(EMBEDDED_MODEL, frozenset({0})), vocab_size=4096)
    text = json.dumps({"type": "string", "pattern": "(?=a)b"})
    with pytest.raises(InvalidRequest, match=r"look-ahead and look-behind.*; change it\.$"):
        compiler.compile(ConstraintSpec("response_format", "json_schema", text))


def test_refusal_shows_nothing_of_the_engines_own_grammar() -> None:
    compiler = GrammarCompiler(load_tokenizer(EMBEDDED_MODEL, frozenset({0})), vocab_size=4096)
    grammar = "start: thing\nthing: nobody\n"
    with pytest.raises(InvalidRequest, match=r"^g cannot be used: [^|]*nobody[^|]*; change it\.$"):
        compiler.compile(ConstraintSpec("g", "grammar", grammar))


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compiler = GrammarCompiler(load_tokenizer(EMBEDDED_MODEL, frozenset({0})), vocab_size=4096)
    with pytest.raises(InvalidRequest, match=r"requirements-constraints\.txt"):
        compiler.compile(REGEX)
