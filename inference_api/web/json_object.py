"""Parses the JSON object of a request body, and checks it as a whole before any of its fields.

Bounds on its structure are checked before parsing. Parsing and validating hold the interpreter
lock, and take many times the bytes they read. Text is cheap; values are not, most of all lists,
objects and their members.

Pure: any thread.
"""

import json
import math
import re
from collections.abc import Iterator

from inference_api.errors import InvalidRequest
from inference_api.tools.values import MAX_DEPTH, children, is_deeper_than, refuse_constant

# 256 prompts of 2048 token ids, and some more. A body of 4 MiB exceeds it only with short values.
MAX_VALUES = 600_000
MAX_MEMBERS = 32_768  # 8192 messages of four members
_BOUNDS = (
    (b",", MAX_VALUES, "values"),
    (b":", MAX_MEMBERS, "members of objects"),
    (b"{", MAX_MEMBERS, "objects"),
    (b"[", MAX_MEMBERS, "lists"),
)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(body: bytes, says_where: bool = True) -> dict[str, object]:
    """Returns the object. Raises InvalidRequest if the body is no object, exceeds a bound, or
    contains half of a surrogate pair. The reference does not say where a body is malformed."""
    check_structure(body)
    fault = "it is no object"
    try:
        parsed = json.loads(body.decode("utf-8-sig"), parse_constant=refuse_constant)
    except RecursionError:
        raise _too_deep("The body") from None
    except ValueError as error:
        parsed, fault = None, str(error).partition(";")[0]
    if not isinstance(parsed, dict):
        message = "Malformed JSON request body."
        if says_where:
            message += f" Send a JSON object in UTF-8: {fault}."
        raise InvalidRequest(message)
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(parsed)
    if ESCAPED_SURROGATE.search(body):
        _check_texts(parsed)
    return parsed


def check_structure(body: bytes) -> None:
    """Raises InvalidRequest if commas, colons and brackets show that a bound is exceeded."""
    for mark, at_most, plural in _BOUNDS:
        if body.count(mark) > at_most and _count_outside_strings(body, mark, at_most) > at_most:
            raise InvalidRequest(
                f"The body has more than {at_most} {plural}; send text, or less at once."
            )


def _count_outside_strings(body: bytes, mark: bytes, at_most: int) -> int:
    """Returns the number of marks; stops counting above `at_most`."""
    total, at = 0, 0
    for string in _STRING.finditer(body):
        total += body.count(mark, at, string.start())
        at = string.end()
        if total > at_most:
            return total
    return total + body.count(mark, at)


def shortened(value: object) -> str:
    """Returns at most 40 characters of a value, for messages."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _too_deep(name: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"{name} is nested more than {MAX_DEPTH} levels deep; flatten it.", param)


def widest_object(value: object) -> int:
    """Returns the number of members of the largest object in the value."""
    return max(len(each) if isinstance(each, dict) else 0 for each in _values(value))


def has_infinity(value: object) -> bool:
    """Returns whether a number in the value was beyond any float."""
    return any(isinstance(each, float) and math.isinf(each) for each in _values(value))


def _values(value: object) -> Iterator[object]:
    """Yields the value and every value inside it."""
    waiting = [value]
    while waiting:
        yield (each := waiting.pop())
        waiting.extend(children(each))


def _check_depth(parsed: dict[str, object]) -> None:
    for name, value in parsed.items():
        if is_deeper_than(value, MAX_DEPTH):
            raise _too_deep(shortened(name), shortened(name))


def _check_texts(parsed: dict[str, object]) -> None:
    """Raises InvalidRequest for a text with half of a surrogate pair, which JSON can escape but no
    encoding can represent."""
    for path, text in _texts(parsed, ""):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{shortened(path) or 'A name'} has half of a surrogate pair at character "
                f"{error.start}; send whole characters.",
                shortened(re.split(r"[.\[]", path)[0]) or None,
            ) from None


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yields every text with its path. The names in an object have the object's path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, child in value.items():
            yield path, name
            yield from _texts(child, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _texts(child, f"{path}[{index}]")
