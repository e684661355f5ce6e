"""Parsers of calls in tags: Qwen3-Coder, Seed-OSS, GLM. Schemas turn arguments into JSON."""

import json

from inference_api.tools.calls import Calls, plain_input
from inference_api.tools.formats import tagged
from inference_api.tools.reader import EndOfText, NotACall, Reader, Steps
from inference_api.tools.values import typed

FUNCTION, PARAMETER = "<function=", "<parameter="
END_FUNCTION, END_PARAMETER, END_CALL = "</function>", "</parameter>", "</tool_call>"
SEED_TAGS = ("<seed:tool_call>", "</seed:tool_call>")
MAX_HEAD_CHARS = 128  # longest name in a tag


class _Arguments:
    """The object of a call's arguments, written as its members come."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self._schema = calls.schemas.get(name, {})
        self._count = 0

    def add(self, name: str, value: str) -> Steps[None]:
        begin = ", " if self._count else "{"
        member = f"{json.dumps(name, ensure_ascii=False)}: {typed(value, name, self._schema)}"
        self._count += 1
        yield self._calls.arguments(begin + member)

    def end(self, at: int) -> Steps[None]:
        yield self._calls.arguments("}" if self._count else "{}")
        yield self._calls.end(at)


def _begun(reader: Reader, calls: Calls, name: str) -> Steps[_Arguments]:
    if name in calls.plain:
        yield from plain_input(reader, calls, name)
    yield calls.start(name)
    return _Arguments(calls, name)


def _head(reader: Reader, mark: str) -> Steps[str]:
    """Reads a name up to the mark, or to a line break in its place. Raises NotACall."""
    name, _ = yield from reader.read_until((mark, "\n"))
    if not 0 < len(name.strip()) <= MAX_HEAD_CHARS:
        raise NotACall
    return name.strip()


def _value(reader: Reader, end: str, others: tuple[str, ...]) -> Steps[str]:
    """Reads a value up to its end mark, or if that is missing, to the next mark or the end."""
    try:
        value, mark = yield from reader.read_until((end, *others))
    except EndOfText:
        value, reader.at = reader.text[reader.at :], len(reader.text)
        return value
    if mark != end:
        reader.at -= len(mark)
    return value


def _takes(reader: Reader, literal: str) -> Steps[bool]:
    """Returns whether the literal comes next, after white space; False at the end of the text."""
    try:
        yield from reader.skip_space()
        return (yield from reader.take(literal))
    except EndOfText:
        return False


def _qwen_coder_call(reader: Reader, calls: Calls) -> Steps[None]:
    if not reader.text.startswith(FUNCTION, reader.at - len(FUNCTION)):
        yield from reader.expect(FUNCTION)
    name = yield from _head(reader, ">")
    arguments = yield from _begun(reader, calls, name)
    while (yield from _takes(reader, PARAMETER)):
        key = yield from _head(reader, ">")
        value = yield from _value(reader, END_PARAMETER, (PARAMETER, END_FUNCTION, END_CALL))
        yield from arguments.add(key, value)
    yield from arguments.end(reader.at)


def _glm_call(reader: Reader, calls: Calls) -> Steps[None]:
    name, mark = yield from reader.read_until(("\n", "<arg_key>", END_CALL))
    if mark != "\n":
        reader.at -= len(mark)
    arguments = yield from _begun(reader, calls, name.strip())
    while (yield from _takes(reader, "<arg_key>")):
        key = yield from _value(reader, "</arg_key>", ("<arg_value>", END_CALL))
        if (yield from _takes(reader, "<arg_value>")):
            value = yield from _value(reader, "</arg_value>", ("<arg_key>", END_CALL))
            yield from arguments.add(key.strip(), value)
    yield from arguments.end(reader.at)


qwen_coder = tagged(("<tool_call>", FUNCTION), (END_FUNCTION, END_CALL), _qwen_coder_call)
seed = tagged((SEED_TAGS[0], FUNCTION), (END_FUNCTION, SEED_TAGS[1]), _qwen_coder_call)
glm = tagged(("<tool_call>",), (END_CALL,), _glm_call)
