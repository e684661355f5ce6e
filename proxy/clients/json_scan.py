"""Finds token counts and texts in a JSON document while its bytes pass. It keeps few of them in
memory, however long the document is and however deep it nests.

Quotation marks inside strings are escaped, so text is never taken for a key, however it is cut.
"""

import re
from dataclasses import dataclass

from pydantic_core import from_json

# Keys whose strings are an answer's text. `delta` is one in the events of /v1/responses.
_TEXTS = (
    b"arguments|content|delta|partial_json|reasoning|reasoning_content|refusal|response|text"
    b"|thinking"
)
_NAME = b'"(usage|choices|message|' + _TEXTS + b')"'
# Nobody writes more white space there, and the bound limits how many bytes are held back.
_COLON = rb"\s{0,8}+:\s{0,8}+"
_KEY = re.compile(_NAME + _COLON + b"(?=.)", re.DOTALL)
# Bytes up to the next bracket, one of the keys above, or a string whose end has not come.
_PLAIN = rb'(?:[^][{}"]++|(?!' + _NAME + rb'\s{0,8}+(?::|\Z))"(?:[^"\\]++|\\.)*+")*+'
_TO_BRACKET = re.compile(_PLAIN, re.DOTALL)
_TO_DEEP_BRACKET = re.compile(
    _PLAIN + rb"(?:[\[{]" + _PLAIN + rb"[\]}]" + _PLAIN + b")*+", re.DOTALL
)
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TEXT = re.compile(b'"(' + _TEXTS + b')"' + _COLON + rb'"((?:[^"\\]++|\\.)*+)', re.DOTALL)
_BRACKETS = re.compile(rb"[\[{]++|[\]}]++")
_USAGE = re.compile(b'"usage"' + _COLON + rb"\{")
MAX_HELD_BYTES = 64  # longer than any key with its colon
MAX_WHOLE_BYTES = 16 * 1024  # longer answers are read by JsonScan
MAX_USAGE_BYTES = 16 * 1024
MAX_TOKENS = 2**31


@dataclass(slots=True)
class Tally:
    """The token counts that one answer has reported so far, and the bytes of its text."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    cached: int | None = None  # the part of `prompt` that came from a prefix cache
    is_stale: bool = False  # text has come since `completion` was reported
    text_bytes: int = 0
    delta_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.delta_bytes or self.text_bytes

    def take_text(self, key: bytes, num_bytes: int) -> None:
        """Counts a text; deltas apart, because later events of /v1/responses repeat their text."""
        if key == b"delta":
            self.delta_bytes += num_bytes
        else:
            self.text_bytes += num_bytes

    def take_usage(self, usage: dict[str, object]) -> None:
        """Records reported counts. Later ones replace earlier ones, because counts grow with the
        answer; but a 0 replaces nothing."""
        prompt = _number(usage, "prompt_tokens", "input_tokens")
        if prompt is not None:
            # Anthropic's input_tokens does not include these.
            for name in ("cache_creation_input_tokens", "cache_read_input_tokens"):
                prompt += _number(usage, name) or 0
            self.prompt = prompt or self.prompt or 0
        completion = _number(usage, "completion_tokens", "output_tokens")
        if completion is not None:
            self.completion = completion or self.completion or 0
            self.is_stale = False
        self.total = _number(usage, "total_tokens") or self.total
        cached = _number(usage, "cache_read_input_tokens")
        for name in ("prompt_tokens_details", "input_tokens_details"):
            if isinstance(details := usage.get(name), dict):
                cached = _number(details, "cached_tokens")
        self.cached = cached if cached is not None else self.cached


def _number(usage: dict[str, object], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if type(value) is int and 0 <= value < MAX_TOKENS:
            return value
    return None


def scan_whole(data: bytes, tally: Tally) -> bool:
    """Does what JsonScan does, several times faster, for a complete document without usage.
    Returns False, with nothing done, if the document has usage."""
    if _USAGE.search(data):
        return False
    for key, text in _TEXT.findall(data):
        tally.take_text(key, len(text))
    return True


def parse_whole(data: bytes, tally: Tally) -> bool:
    """Does what JsonScan does, several times faster, for a complete short answer. Returns False,
    with nothing done, for any other data, and for an answer with several usages."""
    if (
        len(data) > MAX_WHOLE_BYTES
        or not data.rstrip().endswith(b"}")
        or data.count(b'"usage"') > 1
    ):
        return False
    try:
        fields = from_json(data)
    except ValueError:
        return False
    for holder in (fields, fields.get("message"), fields.get("response")):
        if isinstance(holder, dict) and isinstance(usage := holder.get("usage"), dict):
            tally.take_usage(usage)
    if tally.completion is None and tally.total is None:  # else no estimate needs the text
        for key, text in _TEXT.findall(data):
            tally.take_text(key, len(text))
    return True


@dataclass(slots=True)
class JsonScan:
    """Reads a document's bytes as they come. Records in `tally` the usage at the top level, or in a
    `message` or `response` there, in which events of /v1/messages and /v1/responses wrap it."""

    tally: Tally
    has_usage: bool = False
    has_no_choices: bool = False  # `choices` is an empty list
    _rest: bytes = b""  # bytes that cannot be interpreted yet
    _depth: int = 0
    _text_key: bytes | None = None  # key of the current string; empty if the string is no text
    _usage: bytearray | None = None  # the bytes so far of the usage that is being read
    _usage_depth: int = 0
    _is_wrapped: bool = False
    _is_choices_new: bool = False

    def feed(self, piece: bytes) -> None:
        data, at = self._rest + piece, 0
        while at < len(data):
            begin, is_usage = at, self._usage is not None
            at = self._step(data, at)
            if is_usage:
                self._keep(data[begin:at])
            if at == begin:
                break
        self._rest = data[at:]

    def _step(self, data: bytes, at: int) -> int:
        """Reads one element. Returns where the next begins; `at` itself if it needs more bytes."""
        if self._text_key is not None:
            return self._read_string(data, at, self._text_key)
        skipped = (_TO_DEEP_BRACKET if self._usage is None else _TO_BRACKET).match(data, at)
        at = skipped.end() if skipped else at
        if at == len(data):
            return at
        if brackets := _BRACKETS.match(data, at):
            return at + self._turn(brackets[0])
        if key := _KEY.match(data, at):
            return self._enter(key[1], data, key.end())
        if len(data) - at <= MAX_HELD_BYTES:
            return at
        self._text_key = b""
        return at + 1

    def _read_string(self, data: bytes, at: int, key: bytes) -> int:
        string = _STRING.match(data, at)
        end = string.end() if string else at
        if key:
            self.tally.take_text(key, end - at)
        if data[end : end + 1] == b'"':
            self._text_key = None
            end += 1
        return end

    def _turn(self, brackets: bytes) -> int:
        """Follows brackets that open or close levels. Returns how many of them it has read."""
        is_choices_new, self._is_choices_new = self._is_choices_new, False
        if brackets[0] in b"{[":
            self._depth += len(brackets)
            return len(brackets)
        # Only one at a time at the levels where a usage or its wrapper may end.
        end = 1 if self._usage is None else self._usage_depth
        count = min(len(brackets), max(1, self._depth - end - 1)) if self._depth else len(brackets)
        self._depth = max(0, self._depth - count)
        self._is_wrapped = self._is_wrapped and self._depth > 1
        self.has_no_choices = self.has_no_choices or is_choices_new
        return count

    def _enter(self, name: bytes, data: bytes, at: int) -> int:
        """Begins the value of one of the keys above. Returns where to read on."""
        begin = data[at : at + 1]
        if begin == b'"':
            self._text_key = b"" if name in (b"usage", b"choices", b"message") else name
            return at + 1
        if begin == b"[" and name == b"choices" and self._depth == 1:
            self._turn(begin)
            self._is_choices_new = True
            return at + 1
        if begin == b"{" and name == b"usage":
            if self._usage is None and self._depth == 1 + self._is_wrapped:
                self._usage, self._usage_depth = bytearray(), self._depth
        elif begin == b"{" and name in (b"message", b"response") and self._depth == 1:
            self._is_wrapped = True
        return at

    def _keep(self, part: bytes) -> None:
        assert self._usage is not None
        if len(self._usage) <= MAX_USAGE_BYTES:
            self._usage += part
        if self._depth > self._usage_depth:
            return
        usage, self._usage = self._usage, None
        if len(usage) <= MAX_USAGE_BYTES:
            try:
                fields = from_json(bytes(usage))
            except ValueError:
                return
            self.has_usage = True
            self.tally.take_usage(fields)
