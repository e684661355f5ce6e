"""Finds token counts and texts in an answer while its bytes pass: in a JSON document, and in the
data of server-sent events. It keeps few bytes in memory, however long a document is and however
deep it nests. `Inflater` decompresses, which an upstream may make necessary though unasked.

Quotation marks inside strings are escaped, so text is never taken for a key, however it is cut.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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

BOM = b"\xef\xbb\xbf"
NUM_KIND_BYTES = len(BOM) + len(b"data: ")  # bytes of a line that show its kind
_LINE_END = re.compile(rb"\r\n?|\n")
# The form in which nearly all servers write events.
_USUAL_EVENTS = re.compile(rb"(?:data: [^\r\n]++\n\n)++")
ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
MAX_PIECE_BYTES = 64 * 1024
# Beyond MAX_FREE_BYTES plus this many times its size, a body is a bomb. Events shrink 30 times.
MAX_GROWTH = 64
MAX_FREE_BYTES = 1024 * 1024
WITH_HEADER = zlib.MAX_WBITS | 32  # zlib's flag for either header, gzip's or its own
WITHOUT_HEADER = -zlib.MAX_WBITS  # raw data, which some servers call deflate


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


class EventEnd(NamedTuple):
    """`is_usage`: the event is the one that include_usage asks for, and has nothing else."""

    at: int  # offset in the piece, behind the event's last byte
    is_usage: bool


@dataclass(slots=True)
class EventReader:
    """Reads events by their grammar (WHATWG HTML, section 9.2.6). Records the token counts and text
    bytes in their data, which is JSON, in `tally`."""

    tally: Tally
    num_texts: int = 0  # events that had text
    _num_text_bytes: int = 0  # bytes of text up to the last event
    _scan: JsonScan | None = None  # None: the event has no data so far
    _line: bytes | None = b""  # the line's beginning; None once its kind is known
    _is_first_line: bool = True
    _is_data: bool = False
    _is_after_cr: bool = False
    _ended: bool | None = None  # `is_usage` of the event that the last line ended, if any

    @property
    def is_between_events(self) -> bool:
        """Whether no data has come since the last event."""
        return self._scan is None and not self._line

    def feed(self, piece: bytes) -> list[EventEnd]:
        """Returns the ends of the events that end in the piece."""
        is_at_begin = self._line == b"" and self._scan is None and not self._is_after_cr
        if is_at_begin and _USUAL_EVENTS.fullmatch(piece):
            return self._feed_usual(piece)
        at, ends = 0, []
        if self._is_after_cr and piece.startswith(b"\n"):
            at = 1
            if self._ended is not None:
                ends.append(EventEnd(1, self._ended))
        while at < len(piece):
            found = _LINE_END.search(piece, at)
            self._take(piece[at : found.start()] if found else piece[at:])
            self._is_after_cr = False
            if found is None:
                break
            at = found.end()
            self._is_after_cr = at == len(piece) and found[0] == b"\r"
            self._ended = self._end_event() if self._end_line() else None
            if self._ended is not None:
                ends.append(EventEnd(at, self._ended))
        return ends

    def finish(self) -> None:
        """Ends the stream, even in the middle of an event."""
        self._end_line()
        self._end_event()

    def _feed_usual(self, piece: bytes) -> list[EventEnd]:
        at, ends = 0, []
        self._is_first_line = False
        for event in piece[:-2].split(b"\n\n"):
            if not scan_whole(event, self.tally):
                self._scan = JsonScan(self.tally)
                self._scan.feed(event[6:])
            at += len(event) + 2
            ends.append(EventEnd(at, self._end_event()))
        return ends

    def _take(self, part: bytes) -> None:
        """Reads a part of one line."""
        if self._line is not None:
            self._line += part
            if len(self._line) < NUM_KIND_BYTES:
                return
            part = self._begin_line(self._line)
        if self._is_data and self._scan is not None:
            self._scan.feed(part)

    def _begin_line(self, line: bytes) -> bytes:
        """Finds out what kind of line begins like this. Returns the data in its beginning."""
        if self._is_first_line:
            line = line.removeprefix(BOM)
        self._line, self._is_first_line = None, False
        self._is_data = line.startswith(b"data:") or line == b"data"
        if not self._is_data:
            return b""
        if self._scan is None:
            self._scan = JsonScan(self.tally)
        else:
            self._scan.feed(b"\n")
        return line[5:].removeprefix(b" ")

    def _end_line(self) -> bool:
        """Ends a line. Returns whether it is empty, which ends the event."""
        is_empty = self._line == b""
        if self._line is not None:
            data = self._begin_line(self._line)
            if self._scan is not None:
                self._scan.feed(data)
        self._line = b""
        return is_empty

    def _end_event(self) -> bool:
        """Ends an event. Returns whether it has usage and nothing else."""
        scan, self._scan = self._scan, None
        num_text_bytes = self.tally.text_bytes + self.tally.delta_bytes
        if num_text_bytes > self._num_text_bytes:
            self._num_text_bytes = num_text_bytes
            self.num_texts += 1
            self.tally.is_stale = scan is None or not scan.has_usage
        return scan is not None and scan.has_usage and scan.has_no_choices


@dataclass(slots=True)
class Inflater:
    """Decompresses a body as it comes, at most MAX_PIECE_BYTES at a time."""

    _stream: "zlib._Decompress | None" = None  # None: the format is not known yet
    _begin: bytes = b""
    _num_in: int = 0
    _num_out: int = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the content. Raises ValueError for damaged data, another format, or a bomb."""
        self._num_in += len(data)
        if self._stream is None:
            data = self._begin = self._begin + data
            if len(data) < 2:
                return
            self._stream = zlib.decompressobj(WITH_HEADER if _has_header(data) else WITHOUT_HEADER)
        piece = b""
        while data or len(piece) == MAX_PIECE_BYTES:
            try:
                piece = self._stream.decompress(data, MAX_PIECE_BYTES)
            except zlib.error as error:
                raise ValueError("neither gzip nor deflate") from error
            self._num_out += len(piece)
            if self._num_out > MAX_FREE_BYTES + MAX_GROWTH * self._num_in:
                raise ValueError("a bomb")
            yield piece
            data = self._stream.unconsumed_tail
            if self._stream.eof and (data := self._stream.unused_data):
                self._stream = zlib.decompressobj(WITH_HEADER)


def _has_header(data: bytes) -> bool:
    """Returns whether data begins with gzip's magic number, or zlib's (RFC 1950, section 2.2)."""
    is_zlib = data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
    return data.startswith(b"\x1f\x8b") or is_zlib
