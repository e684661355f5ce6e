"""Reads an answer's text as it comes, and yields events."""

from collections.abc import Generator
from dataclasses import dataclass

from inference_api.tools.calls import Calls
from inference_api.tools.events import Event, ThoughtDelta
from inference_api.tools.formats import Read
from inference_api.tools.reader import EndOfText, Reader, Steps


@dataclass(frozen=True, slots=True)
class Thought:
    """The tags around a model's thoughts, and the template's name for a thought."""

    begin: str
    end: str
    label: str = ""


class AnswerReader:
    """Reads one answer. The events depend on the text alone, not on how it is cut into pieces."""

    def __init__(
        self, read: Read, calls: Calls, thought: Thought | None = None, is_thinking: bool = False
    ) -> None:
        """`is_thinking` says that the prompt has begun the thought already."""
        self._reader = Reader()
        self._calls = calls
        self._steps: Generator[Event | None, None, None] = self._read(read, thought, is_thinking)

    @property
    def num_calls(self) -> int:
        return self._calls.count

    def push(self, piece: str) -> list[Event]:
        """Returns the events that the next piece of text completes."""
        self._reader.text += piece
        return self._next_events()

    def finish(self) -> list[Event]:
        """Returns the remaining events, once the text has ended."""
        self._reader.has_ended = True
        return self._next_events()

    def _next_events(self) -> list[Event]:
        events: list[Event] = []
        try:
            while (event := next(self._steps)) is not None:
                events.append(event)
        except StopIteration:
            pass
        return events

    def _read(self, read: Read, thought: Thought | None, is_thinking: bool) -> Steps[None]:
        reader = self._reader
        try:
            if thought is not None:
                yield from _thoughts(reader, thought, is_thinking)
            yield from read(reader, self._calls)
        except EndOfText:
            return


def _thoughts(reader: Reader, thought: Thought, is_thinking: bool) -> Steps[None]:
    """Reads the thoughts, if the answer begins with any."""
    start = reader.at
    try:
        yield from reader.skip_space()
    except EndOfText:
        reader.at = start
        return
    if (yield from reader.take(thought.begin)):
        is_thinking = True
    if not is_thinking:
        reader.at = start
        return
    yield from reader.take(thought.label)
    yield from reader.skip_space()
    yield from reader.until((thought.end,), ThoughtDelta)
    yield from reader.skip_space()
