"""A bound on the structure of a JSON body, checked before parsing.

Parsing and validating hold the interpreter lock, and take many times the bytes they read. Text is
cheap; the number of values counts, most of all of lists, objects and their members.
"""

import re

from inference_api.errors import InvalidRequest

# 256 prompts of 2048 token ids, and some more. A body of 4 MiB exceeds it only with short values.
MAX_VALUES = 600_000
MAX_MEMBERS = 32_768  # 8192 messages of four
_BOUNDS = (
    (b",", MAX_VALUES, "values"),
    (b":", MAX_MEMBERS, "members of objects"),
    (b"{", MAX_MEMBERS, "objects"),
    (b"[", MAX_MEMBERS, "lists"),
)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def check_structure(body: bytes) -> None:
    """Raises InvalidRequest if commas, colons and brackets show that a bound is exceeded."""
    for mark, at_most, what in _BOUNDS:
        if body.count(mark) > at_most and _count_outside_strings(body, mark, at_most) > at_most:
            raise InvalidRequest(
                f"The body has more than {at_most} {what}; send text, or less at once."
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
