"""Calls that grammars allow, drawn at random, are read as calls and fit their schemas."""

import json
import random
import re
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inference_api.apis.chat import answer_reader, chat_params
from inference_api.errors import InvalidRequest
from inference_api.request import Constraint, ConstraintSpec, GenerationParams
from inference_api.text.call_grammars import text_rule
from inference_api.text.constraints import GrammarCompiler
from inference_api.text.tokenizer_config import TokenizerConfig
from inference_api.text.tokens import HuggingFaceTokenizer, TextStream
from inference_api.tools import dialects, formats
from inference_api.tools.answers import Thought
from inference_api.tools.dialects import Dialect
from inference_api.tools.events import ChosenTools, Mode, Tool, ToolUse
from inference_api.tools.parts import WholeAnswer, whole_answer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 4},
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
        "days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
        "where": {"$ref": "#/$defs/where"},
    },
    "required": ["unit", "days"],
    "$defs": {"where": {"enum": ["here", "there"]}},
}
TOOLS = (Tool("look", None, SCHEMA), Tool("now", "The time."))
REQUIRED = ChosenTools("required")
ALL = [dialect for _, dialect in dialects._BY_TEXTS] + [dialects.GENERIC]
THOUGHT = Thought("<think>", "</think>")
each_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: str(dialect.name))


def use(mode: Mode = "required", **fields: Any) -> ToolUse:
    return ToolUse(TOOLS, ChosenTools(mode, **fields))


@cache
def tokenizer_of(dialect: Dialect, has_marks: bool = True) -> HuggingFaceTokenizer:
    """A token for each byte and, with `has_marks`, a special one for each of the dialect's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*alphabet, "</s>"])}
    backend = Tokenizer(models.BPE(vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    thought = dialect.thought
    tags = [] if thought is None else [thought.begin, thought.end]
    marks = [*dialect.markers, *tags] if has_marks else []
    backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in ["</s>", *marks]])
    tokenizer = HuggingFaceTokenizer(backend, TokenizerConfig(), frozenset({256}))
    tokenizer.dialect = dialect
    return tokenizer


@cache
def compiler_of(tokenizer: HuggingFaceTokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, 512)


def grammar_of(tokenizer: HuggingFaceTokenizer, params: GenerationParams) -> Constraint:
    assert params.constraint is not None
    grammar = compiler_of(tokenizer).compiled(params.constraint)
    assert grammar is not None
    return grammar()


def drawn(
    tokenizer: HuggingFaceTokenizer,
    asked: ToolUse,
    seed: int,
    begin: str = "",
    params: GenerationParams | None = None,
) -> WholeAnswer:
    """An answer of random tokens, from what the grammar allows behind `begin`."""
    params = chat_params(params or GenerationParams(), asked, tokenizer)
    constraint, dice = grammar_of(tokenizer, params), random.Random(seed)
    text = TextStream(tokenizer, params.kept_token_ids)
    pieces, given = [], tokenizer.encode(begin, add_special_tokens=False)
    for _ in range(3000):
        bits = np.unpackbits(np.frombuffer(constraint.allowed, np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        token_id = given.pop(0) if given else dice.choice(allowed)
        assert token_id in allowed
        if token_id == 256:
            break
        pieces.append(text.push([token_id]))
        constraint.accept(token_id)
        if constraint.is_complete:
            break
    else:
        pytest.fail("no end")
    reader = answer_reader(tokenizer, asked, [])
    events = [event for piece in [*pieces, text.finish()] for event in reader.push(piece)]
    return whole_answer([*events, *reader.finish()])


def check(answer: WholeAnswer) -> None:
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    assert answer.calls
    for call in answer.calls:
        jsonschema.validate(json.loads(call.text), schemas[call.name])


# Harmony may think first, and random thoughts have no end.
AT_ONCE = defaultdict(str, {"harmony": "<|channel|>commentary to="})


@each_dialect
@pytest.mark.parametrize("has_marks", [True, False])
def test_required_calls_are_read_and_fit(dialect: Dialect, has_marks: bool) -> None:
    for seed in range(2):
        answer = drawn(tokenizer_of(dialect, has_marks), use(), seed, AT_ONCE[dialect.name])
        check(answer)
        assert answer.text == ""


def test_calls_of_kimi_are_answered_with_their_ids() -> None:
    calls = drawn(tokenizer_of(dialects.KIMI), use(), 2).calls
    ids = [f"functions.{call.name}:{number}" for number, call in enumerate(calls)]
    assert [call.call_id for call in calls] == ids
    assert len(ids) > 1


@each_dialect
def test_one_call_and_no_more_where_several_are_not_wanted(dialect: Dialect) -> None:
    one: Any
    for one in ({"allows_several": False}, {"is_named": True}):
        for seed in range(3):
            assert (
                len(drawn(tokenizer_of(dialect), use(**one), seed, AT_ONCE[dialect.name]).calls)
                == 1
            )


RICH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "Y": {"type": "string", "maxLength": 3}},
            "required": ["x"],
        },
        "of": {
            "type": "array",
            "items": {"anyOf": [{"type": "boolean"}, {"const": {"b": [1, None], "a": "x"}}]},
            "minItems": 2,
            "maxItems": 3,
        },
        "size": {"type": ["number", "null"]},
        "free": {},
        "tree": {"$ref": "#/$defs/tree"},
    },
    "required": ["of", "at"],
    "$defs": {"tree": {"type": "object", "properties": {"in": {"$ref": "#/$defs/tree"}}}},
}


def test_gemma_is_held_to_what_is_nested() -> None:
    asked = ToolUse((Tool("look", None, RICH),), REQUIRED)
    found: set[str] = set()
    for seed in range(12):
        for call in drawn(tokenizer_of(dialects.GEMMA), asked, seed).calls:
            said = json.loads(call.text)
            jsonschema.validate(said, RICH)
            assert [*said] == sorted(said)
            found |= said.keys()
    assert found == RICH["properties"].keys()


BEGUN = {
    "harmony": "<|channel|>commentary to=functions.",
    "llama": '{"name": "look", "par',
    "generic": '{"tool_calls"',
    "deepseek": f"Hm.{formats.BEGIN_ALL}",
    "deepseek-fenced": f"Hm.{formats.BEGIN_ALL}",
    "kimi": "Hm.<|tool_calls_section_begin|>",
    "gemma": "Hm.<|tool_call>",
    "phi": "Hm.<|tool_call|>",
    "granite": "Hm.<|tool_call|>",
    "hunyuan": "Hm.<tool_calls>",
    "nemotron": "Hm.<TOOLCALL>",
    "seed": "Hm.<seed:tool_call>",
    "mistral": "Hm.[TOOL_CALLS]",
    "mistral-args": "Hm.[TOOL_CALLS]",
}


@each_dialect
@pytest.mark.parametrize("has_marks", [True, False])
def test_auto_is_held_from_where_a_call_begins(dialect: Dialect, has_marks: bool) -> None:
    begin = BEGUN.get(dialect.name, "Hm.\n<tool_call>")
    answer = drawn(tokenizer_of(dialect, has_marks), use("auto"), 1, begin)
    check(answer)
    assert answer.text == ("Hm." if begin.startswith("Hm.") else "")


@each_dialect
def test_auto_leaves_other_text_free(dialect: Dialect) -> None:
    begin = "<|channel|>final<|message|>" if dialect.name == "harmony" else ""
    tokenizer = tokenizer_of(dialect)
    for said in ("Hello!\n", '{"name": "Ada"}', "a < b"):
        constraint = grammar_of(tokenizer, chat_params(GenerationParams(), use("auto"), tokenizer))
        for token_id in tokenizer.encode(begin + said, add_special_tokens=False):
            assert constraint.allowed[token_id // 8] >> token_id % 8 & 1
            constraint.accept(token_id)
        assert constraint.allowed[256 // 8] & 1  # it may end here


@pytest.mark.parametrize("has_marks", [True, False])
def test_what_is_required_comes_behind_a_thought(has_marks: bool) -> None:
    tokenizer = tokenizer_of(replace(dialects.HERMES, thought=THOUGHT), has_marks)
    answer = drawn(tokenizer, use(), 3, "<think>I may <tool or not.</think>\n\n")
    assert answer.thoughts == "I may <tool or not."
    check(answer)
    check(drawn(tokenizer, use(), 4, "<tool_call>"))


def test_a_thought_that_the_prompt_has_begun_ends_first() -> None:
    tokenizer = tokenizer_of(replace(dialects.HERMES, thought=THOUGHT))
    spec = chat_params(GenerationParams(), use(), tokenizer).constraint
    assert spec is not None
    assert spec.thinking == "first"
    grammar = compiler_of(tokenizer).compiled(replace(spec, thinking="begun"))
    assert grammar is not None
    constraint = grammar()
    for token_id in tokenizer.encode("Hm.</think>", add_special_tokens=False):
        constraint.accept(token_id)
    assert constraint.allowed_after(tokenizer.encode("\n<tool_call>")) is not None
    assert constraint.allowed_after(tokenizer.encode("\nHm.")) is None


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        (ConstraintSpec("a", "json_schema", '{"enum": [1, 22]}'), {"1", "22"}),
        (ConstraintSpec("a", "choice", '["a/b", "\\"c\\""]'), {"a/b", '"c"'}),
        (ConstraintSpec("a", "regex", r"[xy]/z"), {"x/z", "y/z"}),
        (ConstraintSpec("a", "grammar", 'root ::= b "z"\nb ::= "x" | "}"'), {"xz", "}z"}),
    ],
)
def test_a_text_in_place_of_calls_keeps_its_own_constraint(
    spec: ConstraintSpec, texts: set[str]
) -> None:
    for dialect in (dialects.HERMES, replace(dialects.HERMES, thought=THOUGHT), dialects.LLAMA):
        said = set()
        for seed in range(12):
            begin = "<think></think>" if dialect.thought and seed % 2 else ""
            params = GenerationParams(constraint=spec)
            answer = drawn(tokenizer_of(dialect), use("auto"), seed, begin, params)
            said |= {answer.text} if not answer.calls else set()
        assert said == texts


def test_a_schema_that_cannot_be_held_is_refused_only_where_it_has_to_be() -> None:
    tokenizer = tokenizer_of(dialects.HERMES)
    odd = Tool("odd", None, {"type": "object", "if": {"required": ["a"]}})
    for mode, strict, is_refused in (
        ("auto", False, False), ("auto", True, True),
        ("required", False, False), ("required", True, True),
    ):  # fmt: skip
        asked = ToolUse((replace(odd, is_strict=strict),), ChosenTools(mode))  # type: ignore[arg-type]
        spec = chat_params(GenerationParams(), asked, tokenizer).constraint
        assert spec is not None
        if is_refused:
            with pytest.raises(InvalidRequest, match="if"):
                compiler_of(tokenizer).compiled(spec)
        else:
            assert compiler_of(tokenizer).compiled(spec) is not None  # as far as it can be held


ODD: tuple[Any, ...] = (None, True, -1, 10**30, "", [], [[]], [{}], {}, {"a": None})
READ = "type properties required enum const items format maxLength anyOf $ref $defs"


@pytest.mark.parametrize("name", ["gemma", "hermes"])
def test_no_schema_of_a_client_is_more_than_refused(name: str) -> None:
    (tokenizer,) = (tokenizer_of(dialect) for dialect in ALL if dialect.name == name)
    for number, keyword in enumerate(READ.split()):
        for odd in ODD[number % 2 :: 2]:
            argument = {"type": "string", keyword: odd}
            of_tool = {"type": "object", "properties": {"a": {}}, keyword: odd}
            for schema in ({"type": "object", "properties": {"a": argument}}, of_tool):
                asked = ToolUse((Tool("odd", None, schema),), REQUIRED)
                spec = chat_params(GenerationParams(), asked, tokenizer).constraint
                assert spec is not None
                with suppress(InvalidRequest):
                    compiler_of(tokenizer).compiled(spec)


def test_without_the_extra_only_what_may_go_without_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    tokenizer = tokenizer_of(dialects.HERMES)
    compiler = GrammarCompiler(tokenizer, 512)
    required = chat_params(GenerationParams(), use(), tokenizer).constraint
    free = chat_params(GenerationParams(), use("auto"), tokenizer).constraint
    assert required is not None
    assert free is not None
    with pytest.raises(InvalidRequest, match=r"tool_choice needs llguidance.*extra 'constraints'"):
        compiler.compiled(required)
    assert compiler.compiled(free) is None


def test_what_may_not_end_goes_without_a_grammar() -> None:
    tokenizer = tokenizer_of(dialects.HERMES)
    for params in (GenerationParams(ignore_eos=True), GenerationParams(min_tokens=3)):
        assert chat_params(params, use("auto"), tokenizer).constraint is None


# Text that looks like the end of a call, and begins and ends with white space.
PATCH = 'start: (LINE "\\n"){1,4}\nLINE: /[ +-]?(<\\/tool_call>|"}|```|[ab]){0,3}/'
PATCHES = r'([ +-]?(</tool_call>|"}|```|[ab]){0,3}\n){1,4}'


@each_dialect
@pytest.mark.parametrize("has_marks", [True, False])
def test_an_input_with_a_grammar_comes_last_and_as_it_was_written(
    dialect: Dialect, has_marks: bool
) -> None:
    rule = text_rule(ConstraintSpec("tools", "grammar", PATCH))
    patch = Tool("patch", None, {"type": "object"}, input_rule=rule)
    only = ToolUse((patch,), REQUIRED)
    among = ToolUse((*TOOLS, patch), REQUIRED)
    for seed in range(2):
        for asked in (only, among):
            answer = drawn(tokenizer_of(dialect, has_marks), asked, seed, AT_ONCE[dialect.name])
            *before, last = answer.calls
            assert answer.text == ""
            assert "patch" not in [call.name for call in before]
            if last.name == "patch":
                assert re.fullmatch(PATCHES, last.text), last.text
            else:
                assert asked is among
                check(answer)
