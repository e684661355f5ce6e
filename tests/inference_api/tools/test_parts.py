"""What events in a row amount to."""

from inference_api.tools.events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    TextDelta,
    ThoughtDelta,
)
from inference_api.tools.parts import PartDelta, PartEnd, PartStart, parts_of

ANSWER: list[Event] = [
    ThoughtDelta("Hm"),
    ThoughtDelta("."),
    TextDelta(""),
    TextDelta("Well"),
    CallStart(0, "a", "f"),
    ArgumentsDelta(0, '{"b"'),
    ArgumentsDelta(0, ":1}"),
    CallEnd(0),
    CallStart(1, "b", "g"),
    ArgumentsDelta(1, "{}"),
    CallEnd(1),
    TextDelta("Done"),
]


def test_each_part_begins_and_ends_before_the_next() -> None:
    shown = [
        (event.part.index, type(event), event.text if isinstance(event, PartDelta) else None)
        for event in parts_of(ANSWER)
    ]
    assert shown == [
        (0, PartStart, None), (0, PartDelta, "Hm"), (0, PartDelta, "."), (0, PartEnd, None),
        (1, PartStart, None), (1, PartDelta, "Well"), (1, PartEnd, None),
        (2, PartStart, None), (2, PartDelta, '{"b"'), (2, PartDelta, ":1}"), (2, PartEnd, None),
        (3, PartStart, None), (3, PartDelta, "{}"), (3, PartEnd, None),
        (4, PartStart, None), (4, PartDelta, "Done"), (4, PartEnd, None),
    ]  # fmt: skip


def test_the_end_of_a_part_has_all_of_it() -> None:
    ends = [event for event in parts_of(ANSWER) if isinstance(event, PartEnd)]
    assert [(end.part.kind, end.part.call_id, end.part.name, end.part.text) for end in ends] == [
        ("thought", "", "", "Hm."),
        ("text", "", "", "Well"),
        ("call", "a", "f", '{"b":1}'),
        ("call", "b", "g", "{}"),
        ("text", "", "", "Done"),
    ]
    assert [end.is_last for end in ends] == [False, False, False, False, True]


def test_an_answer_of_nothing_has_no_parts() -> None:
    assert not list(parts_of([TextDelta("")]))
