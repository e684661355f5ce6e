"""Parses server-sent events from bytes that may be cut anywhere, without interpreting them.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from collections.abc import Iterator

MAX_EVENT_BYTES = 4 * 2**20  # more than a long answer in one event


class EventTooLong(Exception):
    """More than MAX_EVENT_BYTES without the end of an event."""


class EventStream:
    """Turns bytes into events. For one thread. Lines end with LF, CRLF or CR. The `data` lines of
    an event are joined by LF, and an empty line ends it. Events without data are dropped."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._name = ""
        self._data: list[str] = []
        self._num_bytes = 0  # bytes of the current event so far
        self._after_cr = False
        self._is_first = True

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Yields the name (often empty) and the data of each event that ends in these bytes. Raises
        EventTooLong."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]  # the second half of a CRLF
            self._after_cr = False
        for piece in data.splitlines(keepends=True):
            self._num_bytes += len(piece)
            if self._num_bytes > MAX_EVENT_BYTES:
                raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
            self._line += piece
            self._after_cr = piece.endswith(b"\r")
            if piece.endswith((b"\n", b"\r")):
                yield from self._take_line()

    def finish(self) -> Iterator[tuple[str, str]]:
        """Yields the last event if the server left out the empty line after it."""
        if self._line:
            yield from self._take_line()
        yield from self._end_event()

    def _take_line(self) -> Iterator[tuple[str, str]]:
        line = self._line.rstrip(b"\r\n").decode(errors="replace")
        self._line.clear()
        if self._is_first:
            self._is_first, line = False, line.removeprefix("\ufeff")
        if not line:
            yield from self._end_event()
            return
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        elif field == "event":
            self._name = value.removeprefix(" ")

    def _end_event(self) -> Iterator[tuple[str, str]]:
        if any(self._data):
            yield self._name, "\n".join(self._data)
        self._name, self._data, self._num_bytes = "", [], 0
