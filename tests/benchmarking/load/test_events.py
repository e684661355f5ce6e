"""Server-sent events of any grammatical shape, cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarking.load import events
from benchmarking.load.answers import ChatStream
from benchmarking.load.events import EventStream, EventTooLong

LINE = st.text(st.characters(exclude_characters="\r\n\ufeff"), max_size=6)
NEWLINE = st.sampled_from(["\n", "\r\n", "\r"])
FIELDS = st.sampled_from(["data", "event", "id", "retry", "other"])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Lines of all kinds with ends of all kinds, and between them empty lines and comments."""
    pieces = [draw(st.sampled_from(["", "\ufeff"]))]
    for _ in range(draw(st.integers(0, 12))):
        field, colon = draw(FIELDS), draw(st.sampled_from([":", ": ", ""]))
        line = draw(st.sampled_from([f"{field}{colon}{draw(LINE)}", f":{draw(LINE)}", ""]))
        pieces += [line, draw(NEWLINE)]
    return "".join(pieces).encode()


def read(*pieces: bytes) -> list[tuple[str, str]]:
    stream = EventStream()
    return [*(event for piece in pieces for event in stream.feed(piece)), *stream.finish()]


@given(streams(), st.lists(st.integers(0, 200), max_size=8))
def test_where_a_stream_is_cut_changes_nothing(stream: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert read(*(stream[a:b] for a, b in pairwise(bounds))) == read(stream)
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == read(stream)


def chat_events() -> bytes:
    """What an answer may be made of, with a character and a CRLF to be cut."""
    return (
        ": hello\r\n\r\n"
        'event: ping\ndata: {"type": "ping"}\n\n'
        'data: {"choices": [{"delta": {"content": "ä"}}]}\r\n\r\n'
        'data: {"choices": [{"delta":\ndata: {"content": [{"text": "b"}]},\rdata: "x": 1}]}\r\r'
        'data: {"choices": [{"delta": null, "finish_reason": "stop"}]}\n\n'
        'data: {"usage": {"completion_tokens": 2}}\n\n'
        "data: [DONE]\n\n"
    ).encode()


@given(st.lists(st.integers(0, len(chat_events())), max_size=5))
def test_an_answer_cut_anywhere_is_the_same_answer(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(chat_events())]
    answer = ChatStream()
    for begin, end in pairwise(bounds):
        answer.feed(chat_events()[begin:end], 1.0)
    answer.finish()
    assert (answer.chunk_texts, answer.chunk_s) == (["ä", "b"], [1.0, 1.0])
    assert (answer.finish_reason, answer.usage) == ("stop", {"completion_tokens": 2})


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
        (b"data:a\r\rdata:  b\r\n\r\n", [("", "a"), ("", " b")]),
        (b"data: a\ndata:\ndata: b\n\n", [("", "a\n\nb")]),
        (b"event: ping\ndata: {}\n\ndata: a\n\n", [("ping", "{}"), ("", "a")]),
        (b"data:\n\ndata\n\n: comment\n\nid: 3\nretry: 1\n\nnothing: x\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [("", "a")]),
        (b"data: \xff\n\n", [("", "\ufffd")]),
        (b"data: a\n", [("", "a")]),  # a server that leaves out the end
        (b"data: a", [("", "a")]),
    ],
)
def test_lines_become_events_as_the_grammar_says(
    stream: bytes, expected: list[tuple[str, str]]
) -> None:
    assert read(stream) == expected


@pytest.mark.parametrize("piece", [b"x", b"data: x", b"data: x\n", b": x\n", b"event: x\r\n"])
def test_what_never_ends_is_given_up(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 1000)
    with pytest.raises(EventTooLong, match="more than 1000 bytes"):
        read(*[piece] * 1001)
