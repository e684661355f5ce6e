"""Tokens of an answer, as it tells them or its text lets them be estimated."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.clients.answer_scan import MAX_USAGE_BYTES
from proxy.clients.usage import Usage, UsageMeter
from tests.proxy.answers import (
    DONE,
    chat_event,
    event,
    messages_stream,
    responses_stream,
    usage_event,
)

EVENTS, JSON = "text/event-stream; charset=utf-8", "application/json"
PROMPT_BYTES = 400
CACHED = Usage(12, 1, "usage", 9)
ODD_TEXTS = (
    "data: x\n\n",
    '"usage": {"completion_tokens": 9}',
    "[DONE]",
    '{"usage":{',
    "\\",
    "é\u2028",
)


def bill(
    answer: bytes,
    content_type: str = EVENTS,
    cuts: Sequence[int] = (),
    encoding: str = "",
    prompt_tokens: str = "",
    num_prompt_bytes: int | None = PROMPT_BYTES,
) -> Usage | None:
    meter = UsageMeter(content_type, encoding, prompt_tokens)
    for begin, end in pairwise([0, *sorted(cuts), len(answer)]):
        meter.feed(answer[begin:end])
    return meter.usage(num_prompt_bytes)


texts = st.lists(st.sampled_from(ODD_TEXTS) | st.text(max_size=12), min_size=1, max_size=5)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(ODD_TEXTS)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["usage", "text", "choices", "x", 'a"usage']), inner)
    ),
    max_leaves=12,
)
cuts = st.lists(st.integers(0, 3000), max_size=8)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, Usage]:
    """A stream of events with any line ends, comments and fields, and what it used."""
    said = draw(texts)
    head: list[bytes] = [b": ping\n\n", b"id: 1\nretry: 5\ndata\n\n", event({"usage": None})]
    body = b"".join([*draw(st.permutations(head)), *map(chat_event, said)])
    if draw(st.booleans()):
        body += usage_event(5, 7)
        used = Usage(5, 7, "usage")
    else:
        num_bytes = sum(len(json.dumps(text)) - 2 for text in said)
        num_texts = sum(bool(text) for text in said)
        used = Usage(PROMPT_BYTES // 4, max(num_texts, -(-num_bytes // 4)), "estimated")
    body += DONE
    if draw(st.booleans()):  # one document over several lines
        body = body.replace(b', "choices"', b',\ndata: "choices"')
    body = body.replace(b"\n", draw(st.sampled_from([b"\n", b"\r\n", b"\r"])))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + body, used


@given(streams(), cuts)
def test_stream_costs_the_same_wherever_it_is_cut(
    stream: tuple[bytes, Usage], at: list[int]
) -> None:
    answer, used = stream
    assert bill(answer) == used
    assert bill(answer, cuts=[min(each, len(answer)) for each in at]) == used
    assert bill(answer, cuts=range(len(answer))) == used


@given(
    st.lists(st.tuples(st.text(max_size=9), values), max_size=4), st.integers(0, 4), values, cuts
)
def test_usage_is_found_wherever_it_stands_in_a_document(
    others: list[tuple[str, Any]], place: int, message: Any, at: list[int]
) -> None:
    fields = {name: value for name, value in others if name not in ("usage", "message", "response")}
    fields["choices"] = [{"message": {"content": message, "usage": {"prompt_tokens": 9}}}]
    items = list(fields.items())
    items.insert(place, ("usage", {"prompt_tokens": 5, "x": {"a": [1]}, "completion_tokens": 7}))
    answer = json.dumps(dict(items)).encode()
    assert bill(answer, JSON) == Usage(5, 7, "usage")
    assert bill(answer, JSON, [min(each, len(answer)) for each in at]) == Usage(5, 7, "usage")


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


ENCODERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    ("Deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("identity", bytes),
]


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS)
@given(stream=streams(), at=cuts)
def test_stream_costs_the_same_however_it_is_encoded(
    encoding: str, encode: Callable[[bytes], bytes], stream: tuple[bytes, Usage], at: list[int]
) -> None:
    answer, used = encode(stream[0]), stream[1]
    assert bill(answer, EVENTS, [min(each, len(answer)) for each in at], encoding) == used


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS)
def test_large_answer_costs_what_its_first_bytes_say(
    encoding: str, encode: Callable[[bytes], bytes]
) -> None:
    rows = [{"embedding": [0.125] * 1000, "text": "x" * 1000} for _ in range(300)]
    answer = json.dumps({"usage": {"prompt_tokens": 8, "total_tokens": 8}, "data": rows}).encode()
    answer = encode(answer)
    assert bill(answer, JSON, range(0, len(answer), 65536), encoding) == Usage(8, 0, "usage")


@pytest.mark.parametrize(
    ("answer", "used"),
    [
        (messages_stream("Hello", " there"), Usage(25, 15, "usage")),
        (messages_stream("Hello", " there", "!" * 40, ends=False), Usage(25, 13, "estimated")),
        (responses_stream("Hello", " there"), Usage(4, 7, "usage")),
        (responses_stream("Hello", " there", ends=False), Usage(100, 3, "estimated")),
        (usage_event(5, 7) + chat_event("x" * 80), Usage(5, 20, "estimated")),
        (
            chat_event("a", usage={"prompt_tokens": 5, "completion_tokens": 1}) * 2,
            Usage(5, 1, "usage"),
        ),
        (event({"usage": {"prompt_tokens": 5, "completion_tokens": 7}})[:-2], Usage(5, 7, "usage")),
        (b"", Usage(100, 0, "estimated")),
    ],
    ids=[
        *("messages", "messages cut", "responses", "responses cut", "more text", "in each event"),
        *("no last line end", "empty"),
    ],
)
def test_streams_of_other_apis_cost_what_they_told_until_they_ended(
    answer: bytes, used: Usage
) -> None:
    assert bill(answer) == used
    assert bill(answer, cuts=range(len(answer))) == used


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        ('{"prompt_tokens": 8, "total_tokens": 8}', Usage(8, 0, "usage")),
        ('{"total_tokens": 8}', Usage(8, 0, "usage")),
        ('{"prompt_tokens": 8, "total_tokens": 10}', Usage(8, 2, "usage")),
        ('{"input_tokens": 3, "cache_read_input_tokens": 9, "output_tokens": 1}', CACHED),
        ('{"prompt_tokens": -1, "completion_tokens": 1e3}', Usage(100, 10, "estimated")),
        ('{"prompt_tokens": "8", "completion_tokens": true}', Usage(100, 10, "estimated")),
        ('{"prompt_tokens": NaN, "completion_tokens": Infinity}', Usage(100, 10, "estimated")),
        ('{"prompt_tokens": 8, "completion_tokens": 1' + "0" * 40 + "}", Usage(8, 10, "estimated")),
        ('{"prompt_tokens": 1' + "0" * 9000 + "}", Usage(100, 10, "estimated")),
        ('{"a": ' + "[" * 3000 + "]" * 3000 + ', "prompt_tokens": 8}', Usage(100, 10, "estimated")),
        ('{"prompt_tokens": 8, "x": "' + "x" * MAX_USAGE_BYTES + '"}', Usage(100, 10, "estimated")),
        ('{"prompt_tokens": 8}, "usage": null', Usage(8, 10, "estimated")),
        ('{"prompt_tokens": 8}, "usage": {"prompt_tokens": 9}', Usage(9, 10, "estimated")),
        ('{"prompt_tokens": 8}, "usage": {"prompt_tokens": 0}', Usage(8, 10, "estimated")),
        ("null", Usage(100, 10, "estimated")),
        ("[8]", Usage(100, 10, "estimated")),
    ],
)  # fmt: skip
def test_counts_that_are_none_are_estimated(usage: str, used: Usage) -> None:
    text = "" if used.completion_tokens != 10 else "x" * 40
    answer = f'{{"choices": [{{"text": "{text}"}}], "usage": {usage}}}'.encode()
    assert bill(answer, JSON) == used
    assert bill(answer, JSON, range(len(answer))) == used


def test_calls_in_a_message_are_not_its_usage() -> None:
    call = {"input": {"usage": {"output_tokens": 1}, "message": {"usage": {"output_tokens": 2}}}}
    answer = {"usage": {"input_tokens": 4, "output_tokens": 7}, "content": [call]}
    assert bill(json.dumps(answer).encode(), JSON) == Usage(4, 7, "usage")


def test_hearths_streams_without_usage_cost_their_events_and_what_it_says_of_the_prompt() -> None:
    answer = chat_event("x" * 40) * 3
    assert bill(answer, prompt_tokens="9") == Usage(9, 3, "estimated")
    assert bill(b"tok " * 3, "text/plain", [4, 8], prompt_tokens="9") == Usage(9, 3, "estimated")


def test_what_generates_nothing_costs_what_it_says_alone() -> None:
    assert bill(b'{"tokens": [1, 2], "text": "x"}', JSON, num_prompt_bytes=None) is None
    said = b'{"usage": {"total_tokens": 8}}'
    assert bill(said, JSON, num_prompt_bytes=None) == Usage(8, 0, "usage")


def test_unknown_encodings_cost_their_bytes() -> None:
    assert bill(b"\x8b" * 80, JSON, encoding="br") == Usage(100, 20, "estimated")


@pytest.mark.parametrize(
    "answer",
    [
        gzip.compress(b'{"a":"' + b" " * 2**26, mtime=0),
        b"\x1f\x8bno gzip",
        gzip.compress(b"{}")[:-9],
    ],
    ids=["bomb", "damaged", "cut"],
)
def test_what_cannot_be_undone_is_estimated(answer: bytes) -> None:
    used = bill(answer, JSON, encoding="gzip")
    assert used == Usage(100, 0, "estimated")


@pytest.mark.parametrize("content_type", [EVENTS, JSON])
@pytest.mark.parametrize("piece", [b"[", b"]", b'"', b"\\", b" ", b"x", b"data:", b'{"usage":'])
def test_endless_lines_and_depths_are_read_without_being_kept(
    content_type: str, piece: bytes
) -> None:
    line = b"data: " if content_type is EVENTS else b""
    for begin in (b'{"a": "', b"[", b'{"usage": {'):
        meter, pieces = UsageMeter(content_type), piece * (5000 // len(piece))
        meter.feed(line + begin)
        tracemalloc.start()
        for _ in range(20):
            meter.feed(pieces)
        num_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert num_bytes < 20 * len(pieces) / 4


@pytest.mark.parametrize(
    ("said", "cached"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, 4),
        ({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}}, 0),
        ({"input_tokens": 2, "cache_read_input_tokens": 7}, 7),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 99}}, 9),
        ({"prompt_tokens": 9}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": [4]}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": "4"}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 4}}, 0),
    ],
)
def test_tokens_of_a_prefix_cache_are_never_more_than_the_prompt(
    said: dict[str, Any], cached: int | None
) -> None:
    usage = bill(json.dumps({"usage": said | {"completion_tokens": 1}}).encode(), JSON)
    assert usage is not None
    assert usage.cached_tokens == cached
