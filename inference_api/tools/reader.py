"""Reads text that is still being written, from left to right.

A parser is a generator over a `Reader`: it yields the events it has found, and `None` when it needs
more text. Its events depend on the text alone, never on the pieces in which the text came.
"""

import json
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from inference_api.tools.events import Event

T = TypeVar("T")
Steps = Generator[Event | None, None, T]

WHITE_SPACE = " \t\r\n"


class EndOfText(Exception):
    """The text has ended where more was expected."""


class NotACall(Exception):
    """The text that began like a call is none."""


class Reader:
    """The text so far, and how far it has been read. Belongs to one answer."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.sent_at = 0  # end of the text that the last `until` has sent
        self.has_ended = False

    def more(self) -> Steps[None]:
        """Waits for more text. Raises EndOfText."""
        if self.has_ended:
            raise EndOfText
        yield None

    def peek(self) -> Steps[str]:
        """Returns the next character without reading it."""
        while self.at == len(self.text):
            yield from self.more()
        return self.text[self.at]

    def skip_space(self) -> Steps[None]:
        while (yield from self.peek()) in WHITE_SPACE:
            self.at += 1

    def take(self, literal: str) -> Steps[bool]:
        """Reads the literal if it comes next. Waits only for as much text as decides that."""
        while True:
            found = self.text[self.at : self.at + len(literal)]
            if found == literal:
                self.at += len(literal)
                return True
            if not literal.startswith(found) or self.has_ended:
                return False
            yield from self.more()

    def expect(self, literal: str) -> Steps[None]:
        """Reads white space and the literal. Raises NotACall."""
        yield from self.skip_space()
        if not (yield from self.take(literal)):
            if self.has_ended and literal.startswith(self.text[self.at :]):
                raise EndOfText
            raise NotACall

    def word(self, characters: str, max_chars: int) -> Steps[str]:
        """Reads a run of these characters. Raises NotACall if it is too long."""
        start = self.at
        while (yield from self.peek()) in characters:
            self.at += 1
            if self.at - start > max_chars:
                raise NotACall
        return self.text[start : self.at]

    def until(
        self, marks: Sequence[str], event: Callable[[str], Event], trims: bool = True
    ) -> Steps[str | None]:
        """Sends text up to the first of the marks, then reads and returns that mark; None at the
        end.

        Text that may become a mark is held back; with `trims`, so is white space before it.
        """
        while (mark := (found := self._find(marks))[1]) is None and not self.has_ended:
            held = max((overlap(self.text, each) for each in marks), default=0)
            yield from self._send(max(self.at, len(self.text) - held), event, trims)
            yield from self.more()
        at = len(self.text) if mark is None else found[0]
        yield from self._send(at, event, trims and mark is not None)
        self.sent_at = self.at
        self.at = at + len(mark or "")
        return mark

    def read_until(self, marks: Sequence[str]) -> Steps[tuple[str, str]]:
        """Returns the text before the first of the marks, and the mark. Raises EndOfText."""
        while (mark := (found := self._find(marks))[1]) is None:
            yield from self.more()
        before = self.text[self.at : found[0]]
        self.at = found[0] + len(mark)
        return before, mark

    def _find(self, marks: Sequence[str]) -> tuple[int, str | None]:
        """Returns the first of the marks, and where it is."""
        places = [(self.text.find(mark, self.at), mark) for mark in marks]
        return min((place for place in places if place[0] >= 0), default=(0, None))

    def _send(self, end: int, event: Callable[[str], Event], trims: bool) -> Steps[None]:
        piece = self.text[self.at : end]
        piece = piece.rstrip(WHITE_SPACE) if trims else piece
        self.at += len(piece)
        if piece:
            yield event(piece)

    def json_text(self) -> Steps[str]:
        """Reads a JSON string and returns its value. Raises NotACall."""
        if (yield from self.peek()) != '"':
            raise NotACall
        start = self.at
        self.at += 1
        while (char := (yield from self.peek())) != '"':
            self.at += 1
            if char == "\\":
                yield from self.peek()
                self.at += 1
        self.at += 1
        try:
            return str(json.loads(self.text[start : self.at], strict=False))
        except ValueError:
            raise NotACall from None

    def json_nested(self, event: Callable[[str], Event] | None = None) -> Steps[str]:
        """Reads a JSON object or list to its end, sends it as it comes, and returns it."""
        start = sent = self.at
        depth, is_in_text, is_escaped = 0, False, False
        while True:
            if self.at == len(self.text):
                if event is not None and sent < self.at:
                    yield event(self.text[sent : self.at])
                    sent = self.at
                yield from self.more()
                continue
            char = self.text[self.at]
            self.at += 1
            if is_in_text:
                is_in_text = char != '"' or is_escaped
                is_escaped = char == "\\" and not is_escaped
            elif char == '"':
                is_in_text = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if depth == 0:
                    break
        if event is not None:
            yield event(self.text[sent : self.at])
        return self.text[start : self.at]

    def json_value(self) -> Steps[str]:
        """Reads any JSON value and returns it as written. Raises NotACall."""
        first, start = (yield from self.peek()), self.at
        if first in "{[":
            return (yield from self.json_nested())
        if first == '"':
            yield from self.json_text()
            return self.text[start : self.at]
        yield from self.word("+-.0123456789Eaeflnrstu", 64)
        if self.at == start:
            raise NotACall
        return self.text[start : self.at]


def overlap(text: str, mark: str) -> int:
    """Returns the length of the longest end of `text` that is a proper beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
