"""Parser of Gemma 4's calls: `call:name{key:value,…}`. Texts are enclosed in marks and unescaped;
keys and all other values are bare. Arguments are converted to JSON one by one."""

import json

from inference_api.tools.calls import Calls, plain_input
from inference_api.tools.formats import MAX_NAME_CHARS, NAME_CHARS, tagged
from inference_api.tools.reader import NotACall, Reader, Steps
from inference_api.tools.values import MAX_DEPTH, typed

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
MARKERS = (BEGIN, END, QUOTE)
NONE = "None"  # how the template writes null


def _call(reader: Reader, calls: Calls) -> Steps[None]:
    yield from reader.expect("call:")
    name = yield from reader.word(NAME_CHARS, MAX_NAME_CHARS)
    if name in calls.plain:
        yield from reader.take("\n")
        yield from plain_input(reader, calls, name)
    yield from reader.expect("{")
    yield calls.start(name)
    begin = "{"
    yield from reader.skip_space()
    while not (yield from reader.take("}")):
        yield calls.arguments(begin + (yield from _member(reader, 1)))
        begin = ", "
        yield from _separate(reader, "}")
    yield calls.arguments("{}" if begin == "{" else "}")
    yield calls.end(reader.at)


def _member(reader: Reader, depth: int) -> Steps[str]:
    key = yield from _quoted(reader)
    if key is None:
        found, mark = yield from reader.read_until((":", ",", "}"))
        if mark != ":":
            raise NotACall
        key = json.dumps(found.strip(), ensure_ascii=False)
    else:
        yield from reader.expect(":")
    return f"{key}: {yield from _value(reader, depth)}"


def _value(reader: Reader, depth: int) -> Steps[str]:
    """Reads a value and returns it as JSON. Raises NotACall."""
    if depth > MAX_DEPTH:
        raise NotACall
    yield from reader.skip_space()
    text = yield from _quoted(reader)
    if text is not None:
        return text
    for begin, end, read in (("{", "}", _member), ("[", "]", _value)):
        if (yield from reader.take(begin)):
            parts: list[str] = []
            yield from reader.skip_space()
            while not (yield from reader.take(end)):
                parts.append((yield from read(reader, depth + 1)))
                yield from _separate(reader, end)
            return begin + ", ".join(parts) + end
    bare, mark = yield from reader.read_until((",", "}", "]"))
    reader.at -= len(mark)
    bare = bare.strip()
    return "null" if bare == NONE else typed(bare, "", {})


def _quoted(reader: Reader) -> Steps[str | None]:
    """Reads a text between marks and returns it as JSON; None if none comes next."""
    if (yield from reader.take(QUOTE)):
        text, _ = yield from reader.read_until((QUOTE,))
    elif (yield from reader.peek()) == '"':
        text = yield from reader.json_text()
    else:
        return None
    return json.dumps(text, ensure_ascii=False)


def _separate(reader: Reader, end: str) -> Steps[None]:
    """Reads the separator between two values. An end mark is left to be read. Raises NotACall."""
    yield from reader.skip_space()
    if (yield from reader.take(",")):
        yield from reader.skip_space()
    elif (yield from reader.peek()) != end:
        raise NotACall


gemma = tagged((BEGIN,), (END,), _call)
