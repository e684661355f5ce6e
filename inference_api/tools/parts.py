"""The parts of an answer: consecutive events of one kind, which some APIs number. Pure: any
thread."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from inference_api.tools.events import CallEnd, CallStart, Event, TextDelta, ThoughtDelta

Kind = Literal["text", "thought", "call"]


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A text, a thought or a call. `index` counts all parts. `text` is complete at the part's end;
    of a call it is the arguments, as the model wrote them."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class PartStart:
    part: AnswerPart


@dataclass(frozen=True, slots=True)
class PartDelta:
    part: AnswerPart
    text: str


@dataclass(frozen=True, slots=True)
class PartEnd:
    part: AnswerPart
    is_last: bool


PartEvent = PartStart | PartDelta | PartEnd


def parts_of(events: Iterable[Event]) -> Iterator[PartEvent]:
    """Yields the beginning, pieces and end of one part after another. A part ends when another
    begins, or with the answer, even in the middle of a call."""
    part: AnswerPart | None = None
    pieces: list[str] = []
    for event in events:
        next_part = _begun_by(event, part)
        if next_part is not None:
            if part is not None:
                yield PartEnd(replace(part, text="".join(pieces)), is_last=False)
            part, pieces = next_part, []
            yield PartStart(part)
        text = "" if isinstance(event, CallStart | CallEnd) else event.text
        if part is not None and text:
            pieces.append(text)
            yield PartDelta(part, text)
    if part is not None:
        yield PartEnd(replace(part, text="".join(pieces)), is_last=True)


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    text: str
    thoughts: str
    calls: tuple[AnswerPart, ...]


def whole_answer(events: Iterable[Event]) -> WholeAnswer:
    """Returns the answer that the events add up to."""
    parts = [each.part for each in parts_of(events) if isinstance(each, PartEnd)]

    def joined(kind: Kind) -> str:
        return "".join([part.text for part in parts if part.kind == kind])

    calls = tuple(part for part in parts if part.kind == "call")
    return WholeAnswer(joined("text"), joined("thought"), calls)


def _begun_by(event: Event, before: AnswerPart | None) -> AnswerPart | None:
    index = 0 if before is None else before.index + 1
    kind = None if before is None else before.kind
    match event:
        case TextDelta(text) if text and kind != "text":
            return AnswerPart(index, "text")
        case ThoughtDelta(text) if text and kind != "thought":
            return AnswerPart(index, "thought")
        case CallStart(_, call_id, name):
            return AnswerPart(index, "call", call_id, name)
    return None
