"""Parsers of call formats: generators over a `Reader`.

Each reads a whole answer, from the end of its thoughts on.
"""

from collections.abc import Callable, Sequence

from inference_api.tools.calls import Calls, attempt, json_call, json_calls, plain_input
from inference_api.tools.events import TextDelta
from inference_api.tools.reader import NotACall, Reader, Steps
from inference_api.tools.values import python_arguments

Read = Callable[[Reader, Calls], Steps[None]]

NAME_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
MAX_NAME_CHARS = 128
PYTHON_TAG = "<|python_tag|>"
MAX_PARENTHESES = 16  # in the arguments of a call in Python


def text_only(reader: Reader, calls: Calls) -> Steps[None]:
    yield from reader.until((), TextDelta, trims=False)


def tagged(marks: Sequence[str], ends: Sequence[str], body: Read) -> Read:
    """Returns a parser of text with calls after one of the marks. One of `ends` may follow each."""

    def read(reader: Reader, calls: Calls) -> Steps[None]:
        while (yield from reader.until(marks, TextDelta)) is not None:
            if (yield from attempt(reader, calls, reader.sent_at, body(reader, calls))):
                yield from _skip_ends(reader, ends)

    return read


def _skip_ends(reader: Reader, ends: Sequence[str]) -> Steps[None]:
    yield from reader.skip_space()
    for end in ends:
        if (yield from reader.take(end)):
            yield from reader.skip_space()


# Hermes, Qwen 2.5 and 3, SmolLM. Granite 3.1 puts a list between the same tags; 3.0 has its own.
hermes = tagged(("<tool_call>",), ("</tool_call>",), json_calls)
granite = tagged(("<|tool_call|>", "<tool_call>"), ("</tool_call>",), json_calls)
phi = tagged(("<|tool_call|>", "functools"), ("<|/tool_call|>",), json_calls)
HUNYUAN_TAGS = ("<tool_calls>", "</tool_calls>")
hunyuan = tagged(HUNYUAN_TAGS[:1], HUNYUAN_TAGS[1:], json_calls)
NEMOTRON_TAGS = ("<TOOLCALL>", "</TOOLCALL>")
nemotron = tagged(NEMOTRON_TAGS[:1], NEMOTRON_TAGS[1:], json_calls)


def llama(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads calls that are the whole answer, or follow a tag, which code may follow, too."""
    start = reader.at
    yield from reader.skip_space()
    if (yield from reader.peek()) == "{":
        if (yield from attempt(reader, calls, start, _separated(reader, calls))):
            yield from reader.skip_space()
    else:
        reader.at = start
    yield from tagged((PYTHON_TAG,), (), _behind_python_tag)(reader, calls)


def _separated(reader: Reader, calls: Calls) -> Steps[None]:
    yield from json_call(reader, calls)
    yield from reader.skip_space()
    while (yield from reader.take(";")):
        yield from reader.skip_space()
        yield from json_call(reader, calls)
        yield from reader.skip_space()


def _behind_python_tag(reader: Reader, calls: Calls) -> Steps[None]:
    yield from reader.skip_space()
    if (yield from reader.peek()) == "{":
        yield from _separated(reader, calls)
        return
    name = yield from reader.word(NAME_CHARS, MAX_NAME_CHARS)
    name = name.removesuffix(".call")
    if name not in calls.schemas or not (yield from reader.take("(")):
        raise NotACall
    inside = ""
    for _ in range(MAX_PARENTHESES):
        before, mark = yield from reader.read_until((")",))
        inside += before
        if (arguments := python_arguments(inside)) is not None:
            yield calls.start(name)
            yield calls.arguments(arguments)
            yield calls.end(reader.at)
            return
        inside += mark
    raise NotACall


def _mistral_calls(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads a list, as up to version 7 of the tokenizer, or a name and its arguments."""
    yield from reader.skip_space()
    if (yield from reader.peek()) == "[":
        yield from json_calls(reader, calls)
        return
    name = yield from reader.word(NAME_CHARS, MAX_NAME_CHARS)
    if (yield from reader.take("[CALL_ID]")):
        yield from reader.word(NAME_CHARS, MAX_NAME_CHARS)
    yield from reader.take("[ARGS]")
    yield from arguments_of(reader, calls, name)


def arguments_of(reader: Reader, calls: Calls, name: str) -> Steps[None]:
    """Reads a call's arguments: an object, or a plain input. Raises NotACall."""
    if name in calls.plain:
        yield from plain_input(reader, calls, name)
    yield from reader.skip_space()
    if (yield from reader.peek()) != "{":
        raise NotACall
    yield calls.start(name)
    yield from reader.json_nested(calls.arguments)
    yield calls.end(reader.at)


mistral = tagged(("[TOOL_CALLS]",), (), _mistral_calls)


def generic(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads `{"tool_calls": [...]}` as the whole answer, fenced or not, or in SmolLM2's tags."""
    start = reader.at
    yield from reader.skip_space()
    if (yield from reader.peek()) in "`{":
        if (yield from attempt(reader, calls, start, _object_of_calls(reader, calls))):
            yield from _skip_ends(reader, ("}", "```"))
    else:
        reader.at = start
    yield from hermes(reader, calls)


def _object_of_calls(reader: Reader, calls: Calls) -> Steps[None]:
    if (yield from reader.take("```")):
        yield from reader.take("json")
    yield from reader.expect("{")
    yield from reader.expect('"tool_calls"')
    yield from reader.expect(":")
    yield from json_calls(reader, calls)


BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
BEGIN_ALL, END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def _deepseek_call(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads a name and an object (V3.1), or `function`, a name and a fenced object (V3, R1)."""
    head, _ = yield from reader.read_until((SEPARATOR,))
    name = head.strip()
    if name == "function":
        name = yield from reader.word(NAME_CHARS, MAX_NAME_CHARS)
        yield from reader.skip_space()
        yield from reader.take("```json")
        yield from reader.take("\n")
    yield from arguments_of(reader, calls, name)
    yield from reader.skip_space()
    yield from reader.take("```")


deepseek = tagged((BEGIN_ALL + BEGIN, BEGIN), (END, END_ALL), _deepseek_call)


# The id of a call of Kimi is `functions.NAME:NUMBER`; numbers run through the conversation.
KIMI_MARKERS = SECTION, KIMI_BEGIN, ARGUMENTS, KIMI_END, SECTION_END = (
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|tool_calls_section_end|>",
)  # fmt: skip
KIMI_PREFIX = "functions."


def _kimi_call(reader: Reader, calls: Calls) -> Steps[None]:
    yield from reader.skip_space()
    if (yield from reader.take(KIMI_BEGIN)):
        yield from reader.skip_space()
    yield from reader.take(KIMI_PREFIX)
    name = yield from reader.word(NAME_CHARS, MAX_NAME_CHARS)
    if (yield from reader.take(":")):
        yield from reader.word("0123456789", MAX_NAME_CHARS)
    yield from reader.expect(ARGUMENTS)
    yield from arguments_of(reader, calls, name)


kimi = tagged((SECTION, KIMI_BEGIN), (KIMI_END, SECTION_END), _kimi_call)
