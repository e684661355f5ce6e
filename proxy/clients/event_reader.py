"""Reads server-sent events as they pass, by their grammar (WHATWG HTML, section 9.2.6)."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from proxy.clients.json_scan import JsonScan, Tally, scan_whole

BOM = b"\xef\xbb\xbf"
NUM_KIND_BYTES = len(BOM) + len(b"data: ")  # bytes of a line that show its kind
_LINE_END = re.compile(rb"\r\n?|\n")
# The form in which nearly all servers write events.
_USUAL_EVENTS = re.compile(rb"(?:data: [^\r\n]++\n\n)++")


class EventEnd(NamedTuple):
    """`is_usage`: the event is the one that include_usage asks for, and has nothing else."""

    at: int  # offset in the piece, behind the event's last byte
    is_usage: bool


@dataclass(slots=True)
class EventReader:
    """Reads token counts and text bytes from the events' data, which is JSON, into `tally`."""

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
