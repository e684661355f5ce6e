"""What a client gets of a stream that was asked for its usage on the client's behalf."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.audit import AuditRecord
from proxy.clients.inbound import asking_usage, may_ask_usage
from proxy.clients.relay import MAX_HELD_BYTES, Relay, UsageHider
from proxy.clients.usage import UsageMeter
from tests.proxy.answers import DONE, chat_event, event, usage_event


class Wire:
    """Stands in for the client's connection."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def relayed(pieces: list[bytes], *, is_chunked: bool = False, hides_usage: bool = True) -> bytes:
    wire, record = Wire(), AuditRecord("id", "POST", "/v1/completions")
    meter = UsageMeter("text/event-stream")
    relay = Relay(
        wire,  # type: ignore[arg-type]
        record,
        b"",
        is_chunked,
        meter,
        UsageHider(meter) if hides_usage else None,
        note_piece=lambda: None,
    )
    for piece in pieces:
        relay.take([piece], is_last=False)
    relay.take([], is_last=True)
    assert is_chunked or record.bytes_out == len(wire.data)
    return wire.data


OTHERS = [
    chat_event("data: x\n\n"),
    chat_event('"choices": [], "usage": {}'),
    chat_event("a", usage=None),
    chat_event("a", usage={"prompt_tokens": 1}),
    event({"choices": [], "prompt_filter_results": [{"index": 0}]}),
    event({"choices": [], "usage": None}),
    event({"usage": {"prompt_tokens": 1}}),
    chat_event("x" * 2 * MAX_HELD_BYTES),
    b": ping\n\n",
    b"data\n\n",
    b"\n",
    DONE,
]


@given(
    st.lists(st.sampled_from([*OTHERS, usage_event(5, 7)]), max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 4000), max_size=8),
)
def test_client_gets_every_byte_but_those_of_the_usage_event(
    events: list[bytes], line_end: bytes, cuts: list[int]
) -> None:
    sent = [each.replace(b"\n", line_end) for each in events]
    answer = b"".join(sent)
    passed = [each for each, was in zip(sent, events, strict=True) if was != usage_event(5, 7)]
    at = [0, *sorted(min(each, len(answer)) for each in cuts), len(answer)]
    pieces = [answer[begin:end] for begin, end in pairwise(at)]
    assert relayed(pieces) == b"".join(passed)
    assert relayed(pieces, hides_usage=False) == answer


def test_stream_of_single_bytes_loses_its_usage_event_alone() -> None:
    answer = chat_event("a") + usage_event(5, 7) + DONE
    pieces = [answer[at : at + 1] for at in range(len(answer))]
    assert relayed(pieces) == chat_event("a") + DONE


def test_no_chunk_is_empty_as_that_would_end_the_body() -> None:
    pieces = [chat_event("a"), usage_event(5, 7), DONE]
    assert relayed(pieces, is_chunked=True).count(b"0\r\n\r\n") == 1


def test_comment_is_not_held_back() -> None:
    hider = UsageHider(meter := UsageMeter("text/event-stream"))
    comment = b": still working on it\n"
    assert hider.without_usage(comment, meter.feed(comment)) == comment


@given(
    st.dictionaries(st.sampled_from(["model", "prompt", "n"]), st.text() | st.integers()),
    st.sampled_from([" ", "\n ", ""]),
)
def test_question_changes_nothing_else_of_a_request(fields: dict[str, object], space: str) -> None:
    fields["stream"] = True
    body = (space + json.dumps(fields) + space).encode()
    assert may_ask_usage("/v1/completions/?x=1", body, fields)
    asked = asking_usage(body)
    assert json.loads(asked) == {"stream_options": {"include_usage": True}} | fields
    assert asked.endswith(body.lstrip()[1:])


@pytest.mark.parametrize(
    ("target", "text", "encoding"),
    [
        ("/v1/messages", '{"stream": true}', "utf-8"),
        ("/v1/completions", '{"stream": false}', "utf-8"),
        ("/v1/completions", '{"stream": true, "stream_options": null}', "utf-8"),
        ("/v1/completions", '{"stream": true}', "utf-8-sig"),
        ("/v1/completions", '{"stream": true}', "utf-16-le"),
        ("/v1/completions", '{"stream": true}', "utf-32-be"),
    ],
)
def test_nothing_is_asked_where_it_has_no_place(target: str, text: str, encoding: str) -> None:
    assert not may_ask_usage(target, text.encode(encoding), json.loads(text))
