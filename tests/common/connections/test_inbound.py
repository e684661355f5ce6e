"""Where requests end, however their bytes are cut."""

from itertools import pairwise

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import (
    InvalidHeader,
    InvalidRequestLine,
    LimitRequestHeaders,
    ParseException,
)
from hypothesis import given
from hypothesis import strategies as st

from common.connections.inbound import MAX_HEAD_BYTES, Inbound

LIMIT_BYTES = 1024
SIZED = b"POST /sized HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2;name=value\r\nde\r\n0\r\nTrailer-Field: 1\r\n\r\n"
)
EMPTY = b"\r\nGET /empty HTTP/1.1\r\nHost: a\r\n\r\n"
UPGRADE = b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
EXPECTED = {
    SIZED: ("/sized", b"hello"),
    CHUNKED: ("/chunked", b"abcde"),
    EMPTY: ("/empty", b""),
    UPGRADE: ("/upgrade", b""),
}


def new_inbound() -> Inbound:
    return Inbound(Config(), ("127.0.0.1", 1), LIMIT_BYTES)


def chunked(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body


@given(st.data())
def test_requests_are_the_same_however_they_are_cut(data: st.DataObject) -> None:
    requests = data.draw(st.lists(st.sampled_from(sorted(EXPECTED)), max_size=5))
    sent = b"".join(requests)
    cuts = data.draw(st.sets(st.integers(0, len(sent)), max_size=12))
    inbound, received = new_inbound(), []
    for start, end in pairwise(sorted({0, len(sent), *cuts})):
        is_due = inbound.feed(sent[start:end])
        while is_due:
            request = next(inbound)
            assert request.body is not None
            received.append((request.path, request.body.read()))
            is_due = inbound.feed(inbound.unreader.take_buffered())
    assert received == [EXPECTED[request] for request in requests]
    assert not inbound.has_begun


@pytest.mark.parametrize("request_bytes", sorted(EXPECTED))
def test_whatever_follows_a_chunked_body_is_the_next_request(request_bytes: bytes) -> None:
    inbound = new_inbound()
    assert inbound.feed(CHUNKED + request_bytes)
    body = next(inbound).body
    assert body is not None
    assert body.read() == b"abcde"
    assert inbound.feed(inbound.unreader.take_buffered())
    assert next(inbound).path == EXPECTED[request_bytes][0]


def test_request_is_due_with_its_last_byte_and_not_before() -> None:
    for request in EXPECTED:
        inbound = new_inbound()
        due = [inbound.feed(request[at : at + 1]) for at in range(len(request))]
        assert due == [False] * (len(request) - 1) + [True]


def test_body_over_the_limit_is_due_at_its_head_and_the_connection_ends() -> None:
    inbound = new_inbound()
    fields = f"Expect: 100-continue\r\nContent-Length: {LIMIT_BYTES + 1}\r\n"
    assert inbound.feed(f"POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode())
    assert next(inbound).should_close()


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nabc",
        b"-1\r\n",
        b"3\r\nabcd\r\n",
        b"401\r\n" + b"x" * 1025,
        b"1\r\nx\r\n" * 10 * LIMIT_BYTES,
        b"1" * 17,
        b"2\r\nab\r\n0\r\n bad: trailer",
    ],
    ids=["no number", "negative", "long", "large", "mostly framing", "huge number", "trailer"],
)
def test_chunks_beyond_hope_are_due_at_once_and_the_connection_ends(body: bytes) -> None:
    inbound = new_inbound()
    assert inbound.feed(chunked(body))
    assert next(inbound).should_close()


def test_expectation_is_taken_once() -> None:
    inbound = new_inbound()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert not inbound.feed(head)
    assert [inbound.take_expectation() for _ in range(2)] == [True, False]
    assert inbound.feed(b"ab")
    assert not next(inbound)._expected_100_continue  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"GET / HTTP/1.1\n", InvalidRequestLine),
        (b"GET / HTTP/1.1\r\nHost: a\r\nA: b\n", InvalidHeader),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            InvalidHeader,
        ),
        (b"x" * (MAX_HEAD_BYTES + 1), LimitRequestHeaders),
        (b"\r\n\r\n", ParseException),
        (b"GET / HTTP/1.1\r\n\r\n", ParseException),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", ParseException),
    ],
    ids=[
        "bare LF",
        "bare LF in a field",
        "two lengths",
        "large",
        "no request line",
        "without Host",
        "no host",
    ],
)
def test_malformed_head_is_refused_by_gunicorn_as_soon_as_it_is_seen(
    head: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        new_inbound().feed(head)


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: [::1]:8\r\n\r\n"]
)
def test_old_client_needs_no_host_and_a_new_one_may_name_any(head: bytes) -> None:
    assert new_inbound().feed(head)
