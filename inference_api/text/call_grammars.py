"""Makes grammars for answers that call tools, in the model's own format, for llguidance (Lark).
Pure.

A `required` answer consists of calls, after thoughts if any. With `auto` the text is free until a
call begins, and from there on must use the names and schemas of the tools.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from inference_api.request import ConstraintSpec
from inference_api.text import gemma_grammars
from inference_api.text.client_grammars import CLIENT_GRAMMAR, lark_of
from inference_api.text.closed_objects import with_closed_objects
from inference_api.tools import formats, gemma
from inference_api.tools.answers import Thought
from inference_api.tools.dialects import Dialect, DialectName
from inference_api.tools.events import Json, ToolUse

Terminal = Callable[[str], str]  # writes a mark in Lark: as its token, else as text

MAX_CALLS = 16  # calls in one answer, so that it ends
TEXT = r"TEXT: /(.|\n)*/"
# Models write JSON with or without a space after commas and colons.
JSON_FORM = {"whitespace_pattern": " ?"}
# Ignores keywords of a schema that the engine does not support.
LENIENT_FORM = {**JSON_FORM, "lenient": True}


@dataclass(frozen=True, slots=True)
class Shape:
    """The marks around calls.

    After a `trigger` in the text comes `opening`, then each call as `begin` name `middle` arguments
    `end`, separated by `between`, then `closing`.
    With `is_numbered`, a colon and a number follow the name.
    """

    trigger: str
    begin: str
    middle: str
    end: str
    opening: str = ""
    between: str = ""
    closing: str = ""
    is_numbered: bool = False


_OBJECT = ('{"name": "', '", "arguments": ', "}")
_LIST = ("[", ", ", "]")
SHAPES: Mapping[DialectName, Shape] = {
    "hermes": Shape(
        "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>",
        between="\n<tool_call>",
    ),
    "granite": Shape("<|tool_call|>", *_OBJECT, *_LIST),
    "phi": Shape("<|tool_call|>", *_OBJECT, "[", ", ", "]<|/tool_call|>"),
    "hunyuan": Shape("<tool_calls>", *_OBJECT, "\n[", ", ", "]\n</tool_calls>"),
    "nemotron": Shape("<TOOLCALL>", *_OBJECT, "[", ", ", "]</TOOLCALL>"),
    "mistral": Shape("[TOOL_CALLS]", *_OBJECT, *_LIST),
    "mistral-args": Shape("[TOOL_CALLS]", "", "[ARGS]", "", between="[TOOL_CALLS]"),
    "llama": Shape("", '{"name": "', '", "parameters": ', "}"),
    "generic": Shape("", *_OBJECT, '{"tool_calls": [', ", ", "]}"),
    "deepseek": Shape(
        formats.BEGIN_ALL, formats.BEGIN, formats.SEPARATOR, formats.END, closing=formats.END_ALL
    ),
    "deepseek-fenced": Shape(
        formats.BEGIN_ALL, f"{formats.BEGIN}function{formats.SEPARATOR}", "\n```json\n",
        f"\n```{formats.END}", between="\n", closing=formats.END_ALL,
    ),
    "kimi": Shape(
        formats.SECTION, formats.KIMI_BEGIN + formats.KIMI_PREFIX, formats.ARGUMENTS,
        formats.KIMI_END, closing=formats.SECTION_END, is_numbered=True,
    ),
    "harmony": Shape(
        "", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""
    ),
    "qwen-coder": Shape(
        "<tool_call>", "\n<function=", ">", "\n</function>\n</tool_call>", between="\n<tool_call>"
    ),
    "seed": Shape(
        "<seed:tool_call>", "\n<function=", ">", "\n</function>\n</seed:tool_call>",
        between="\n<seed:tool_call>",
    ),
    "glm": Shape("<tool_call>", "", "", "\n</tool_call>", between="\n<tool_call>"),
    "gemma": Shape(gemma.BEGIN, "call:", "", gemma.END, between=gemma.BEGIN),
}  # fmt: skip


def calls_constraint(
    use: ToolUse, dialect: Dialect, text: ConstraintSpec | None = None
) -> ConstraintSpec | None:
    """Returns the constraint of an answer that may call tools; None if it may call none. `text` is
    the constraint of an answer without calls."""
    tools = use.callable_tools.values()
    if not tools:
        return None
    is_required = use.choice.mode == "required"
    is_one = use.choice.is_named or dialect.one_call_per_turn
    calls = {
        "is_required": is_required,
        "allows_several": use.choice.allows_several and not is_one,
        "tools": {
            tool.name: with_closed_objects(tool.parameters)
            for tool in tools
            if tool.input_rule is None
        },
        "strict": [tool.name for tool in tools if tool.is_strict],
        "inputs": {tool.name: tool.input_rule for tool in tools if tool.input_rule is not None},
    }
    if text is not None:
        calls["text"] = text_rule(text)
    has_to_fit = any(tool.is_strict or tool.input_rule is not None for tool in tools)
    is_dispensable = text is None and not is_required and not has_to_fit
    return ConstraintSpec(use.field, "calls", json.dumps(calls), is_dispensable=is_dispensable)


def calls_grammar(calls: Json, dialect: Dialect, terminal: Terminal) -> str:
    """Returns the rules of `body`. `calls` is the constraint that `calls_constraint` has made."""
    shape, tools, inputs = SHAPES[dialect.name], calls["tools"], calls["inputs"]
    marks = Marks(dialect, terminal)
    before = f"(call {marks(shape.between)}){{0,{MAX_CALLS - 1}}} "
    # A call with a plain input ends only with the answer.
    last = [f"call {marks(shape.closing)}"] * bool(tools) + ["input"] * bool(inputs)
    rules = [
        TEXT,
        f"calls: {marks(shape.opening)} {before if calls['allows_several'] and tools else ''}"
        f"({' | '.join(last)})",
    ]
    if shape.is_numbered:
        rules.append("NUMBER: /[0-9]{1,3}/")
    if dialect.name == "gemma":
        rules += gemma_grammars.any_value(marks)
    for rule, names in (("call", tools), ("input", inputs)):
        rules += [f"{rule}: " + " | ".join(f"{rule}_{n}" for n in range(len(names)))] * bool(names)
    if has_text := "text" in calls and not calls["is_required"]:
        rules.append(f"text: {calls['text']}")
    rules += _body(calls["is_required"], has_text, [*tools, *inputs], marks)
    for number, (name, rule) in enumerate(inputs.items()):
        begin = _opened(shape, name, shape.middle or "\n", marks)
        rules += [f"input_{number}: {begin} text_{number}", f"text_{number}: {rule}"]
    for number, (name, schema) in enumerate(tools.items()):
        rules += [
            f"call_{number}: {_opened(shape, name, shape.middle, marks)} args_{number} "
            f"{marks(shape.end)}",
            *_arguments(f"args_{number}", schema, name in calls["strict"], marks),
        ]
    return "\n".join(rules)


def _opened(shape: Shape, name: str, middle: str, marks: "Marks") -> str:
    if not shape.is_numbered:
        return marks(shape.begin + name + middle)
    return f"{marks(f'{shape.begin}{name}:')} NUMBER {marks(middle)}"


class Marks:
    """Writes literal text for Lark, with the dialect's marks as their tokens."""

    def __init__(self, dialect: Dialect, terminal: Terminal) -> None:
        self.dialect = dialect.name
        self._terminal = terminal
        marks = sorted(dialect.markers, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, marks)) + ")")

    def __call__(self, text: str) -> str:
        parts = [self._terminal(part) for part in self._split.split(text) if part]
        return " ".join(parts) or '""'

    def is_token(self, mark: str) -> bool:
        return not self._terminal(mark).startswith('"')


def _body(is_required: bool, has_text: bool, names: Sequence[str], marks: Marks) -> Iterator[str]:
    """Yields the rules for calls or a text; with `has_text`, that is the rule `text`."""
    trigger = SHAPES[marks.dialect].trigger
    if marks.dialect == "harmony":
        yield from _harmony_body(is_required, marks, "text" if has_text else "TEXT")
    elif is_required or has_text:
        yield f"body: {marks(trigger)} calls{' | text' if has_text else ''}"
    elif not trigger:
        yield from _whole_or_text(names, marks)
    elif marks.is_token(trigger):
        yield f"body: TEXT ({marks(trigger)} calls)?"
    else:
        yield f"head[lazy]: TEXT {marks(trigger)}"
        yield "body: TEXT | head calls"


def _whole_or_text(names: Sequence[str], marks: Marks) -> Iterator[str]:
    """Yields the rules for formats in which calls are the whole answer. A text must not begin like
    a call."""
    beginning = r"\{\"tool_calls\""
    if marks.dialect == "llama":
        beginning = r"\{\"name\": \"(" + "|".join(map(re.escape, names)) + r")\""
    yield f"PLAIN: /(.|\\n)*/ & ~/[ \\n]*{beginning}(.|\\n)*/"
    tag = formats.PYTHON_TAG
    is_tagged = marks.dialect == "llama" and marks.is_token(tag)
    yield "body: calls | PLAIN" + (f" ({marks(tag)} calls)?" if is_tagged else "")


def _harmony_body(is_required: bool, marks: Marks, text: str) -> Iterator[str]:
    """Yields the rules for messages in known channels. The last one is a call, or `final` if no
    call is required."""
    for channel, rule in (("analysis", "TEXT"), ("commentary", "TEXT"), ("final", text)):
        yield f"{channel}: {marks(f'<|channel|>{channel}<|message|>')} {rule}"
    after = marks("<|end|><|start|>assistant")
    yield f"body: ((analysis | commentary) {after})* " + (
        "calls" if is_required else "(calls | final)"
    )


def thought_grammar(thought: Thought, has_begun: bool, terminal: Terminal) -> list[str]:
    """Returns the rules of `start`, which is `body` after a thought."""
    end, begin = terminal(thought.end), terminal(thought.begin)
    is_token = not end.startswith('"')
    return [
        "start: thought SPACE body" if has_begun else f"start: ({begin} thought SPACE)? body",
        r"SPACE: /[ \n]{0,4}/",
        f"thought{'' if is_token else '[lazy]'}: THOUGHT {end}",
        r"THOUGHT: /(.|\n)*/",
    ]


def text_rule(spec: ConstraintSpec) -> str:
    """Returns a constraint as part of a Lark grammar."""
    if spec.kind == "json_schema":
        form = {"whitespace_flexible": False, "lenient": not spec.is_strict}
        return of_schema(json.loads(spec.text), form)
    if spec.kind == "grammar":
        return CLIENT_GRAMMAR + " {\n" + lark_of(spec) + "\n}"
    if spec.kind == "choice":
        return " | ".join(json.dumps(text) for text in json.loads(spec.text))
    pattern = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", spec.text).replace("\n", r"\n")
    return f"/{pattern}/"


def of_schema(schema: Json, form: Mapping[str, object] = JSON_FORM) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": form})


def _arguments(rule: str, schema: Json, is_strict: bool, marks: Marks) -> Iterator[str]:
    json_of = partial(of_schema, form=JSON_FORM if is_strict else LENIENT_FORM)
    if marks.dialect == "gemma":
        yield from gemma_grammars.arguments(rule, schema, json_of, marks)
        return
    if marks.dialect not in ("qwen-coder", "seed", "glm"):
        yield f"{rule}: {json_of(schema)}"
        return
    properties, required = schema.get("properties"), schema.get("required")
    properties = properties if isinstance(properties, dict) else {}
    required = required if isinstance(required, list) else []
    members = []
    for number, (name, about) in enumerate(properties.items()):
        member = f"{rule}_{number}"
        members.append(member if name in required else f"{member}?")
        about = _with_definitions(about, schema)
        yield from _tagged_argument(member, name, about, json_of, marks)
    yield f"{rule}: " + (" ".join(members) or '""')


def _tagged_argument(
    member: str, name: str, about: Json, json_of: gemma_grammars.OfSchema, marks: Marks
) -> Iterator[str]:
    """Yields the rules of an argument between tags: JSON, or plain text if it is a string."""
    is_coder = marks.dialect != "glm"
    begin, end = f"\n<arg_key>{name}</arg_key>\n<arg_value>", "</arg_value>"
    if is_coder:
        edge = "\n" if marks.dialect == "qwen-coder" else ""
        begin, end = f"\n<parameter={name}>{edge}", f"{edge}</parameter>"
    value = f"{member}_value"
    yield f"{member}: {marks(begin)} {value}"
    if about.get("type") == "string" and isinstance(about.get("enum"), list):
        options = " | ".join(marks(str(each)) for each in about["enum"])
        yield f"{value}: ({options}) {marks(end)}"
    elif about.get("type") == "string":
        lazy = "" if not is_coder and marks.is_token(end) else "[lazy]"
        longest = about.get("maxLength")
        text = rf"/(.|\n){{0,{longest}}}/" if isinstance(longest, int) else "TEXT"
        yield f"{value}{lazy}: {text} {marks(end)}"
    else:
        yield f"{value}: {value}_json {marks(end)}"
        yield f"{value}_json: {json_of(about)}"


def _with_definitions(about: object, schema: Json) -> Json:
    """Returns a property's schema with the tool's definitions; `{}` if it is no object."""
    named: Json = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return named | about if isinstance(about, dict) else {}
