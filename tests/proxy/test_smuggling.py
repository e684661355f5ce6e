"""Requests that two servers could read in two ways: refused, and never forwarded.

Raw bytes through a real proxy. Each case is followed on the same connection by a request for
/smuggled, which an upstream must never see. Most are refused by llhttp, httptools' parser;
these tests are the proof that it goes on doing so.
"""

import pytest

from tests.proxy.support import ProxyProcess, ScriptedUpstream, make_token, receive

AUTH = b"Authorization: Bearer " + make_token().encode() + b"\r\n"
HEAD = b"POST /victim HTTP/1.1\r\nHost: p\r\n" + AUTH
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: p\r\n" + AUTH + b"\r\n"

CASES = {
    "two different Content-Length": b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
    "two equal Content-Length": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "Content-Length list": b"Content-Length: 5, 5\r\n\r\nhello",
    "signed Content-Length": b"Content-Length: +5\r\n\r\nhello",
    "negative Content-Length": b"Content-Length: -5\r\n\r\nhello",
    "hexadecimal Content-Length": b"Content-Length: 0x5\r\n\r\nhello",
    "empty Content-Length": b"Content-Length: \r\n\r\nhello",
    "unicode digits in Content-Length": b"Content-Length: \xb2\r\n\r\nhello",
    "TE and CL": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "CL and TE": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two TE": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE identity": b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "TE chunked then identity": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "TE gzip, then chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "TE unknown": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "TE quoted": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "TE with vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "space before colon": b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\nhello",
    "obs-fold": b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "obs-fold of TE": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare CR in a value": b"X-A: b\rTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    "bare LF between headers": b"X-A: b\nX-Team-Id: evil\r\nContent-Length: 0\r\n\r\n",
    "NUL in a value": b"X-A: b\0c\r\nContent-Length: 0\r\n\r\n",
    "no colon": b"Nonsense\r\nContent-Length: 0\r\n\r\n",
    "empty name": b": x\r\nContent-Length: 0\r\n\r\n",
    "non-ASCII name": b"X-\xc3\x84: x\r\nContent-Length: 0\r\n\r\n",
    "two Host": b"Host: other\r\nContent-Length: 0\r\n\r\n",
    "expectation unknown": b"Expect: 200-ok\r\nContent-Length: 0\r\n\r\n",
    "expectation beside": b"Expect: 100-continue\r\nExpect: 200-ok\r\nContent-Length: 0\r\n\r\n",
    "expectation empty": b"Expect: \r\nContent-Length: 0\r\n\r\n",
    "chunk size signed": b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "chunk size 0x": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size with underscore": b"Transfer-Encoding: chunked\r\n\r\n0_5\r\nhello\r\n0\r\n\r\n",
    "chunk size empty": b"Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    "chunk longer than said": b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    "chunk ended by LF": b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    "bare CR in chunk extension": b"Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
    "Host in a trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nHost: evil\r\n\r\n",
}

REQUEST_LINES = {
    "URL with a user": b"POST http://p@elsewhere/victim HTTP/1.1",
    "URL with a fragment": b"POST http://p/victim#x HTTP/1.1",
    "URL without a host": b"POST http:///victim HTTP/1.1",
    "URL with a port alone": b"POST http://:80/victim HTTP/1.1",
    "URL with an invalid host": b'POST http://p"q/victim HTTP/1.1',
    "URL of two slashes": b"POST http://p//victim HTTP/1.1",
    "URL of another scheme": b"POST ftp://p/victim HTTP/1.1",
    "authority form": b"POST p:80 HTTP/1.1",
    "CONNECT": b"CONNECT p:80 HTTP/1.1",
    "TRACE": b"TRACE /victim HTTP/1.1",
    "asterisk": b"POST * HTTP/1.1",
    "fragment": b"POST /victim#x HTTP/1.1",
    "space in target": b"POST /victim x HTTP/1.1",
    "tab as separator": b"POST\t/victim\tHTTP/1.1",
    "control byte in target": b"POST /vic\x01tim HTTP/1.1",
    "raw byte in target": b"POST /vic\xfftim HTTP/1.1",
    "no version": b"POST /victim",
    "HTTP/0.9": b"POST /victim HTTP/0.9",
    "HTTP/1.10": b"POST /victim HTTP/1.10",
    "HTTP/2.0": b"POST /victim HTTP/2.0",
    "lower case": b"post /victim HTTP/1.1",
    "CR LF in target": b"POST /victim\r\nX-Team-Id: evil HTTP/1.1",
    "LF as line end": b"POST /victim HTTP/1.1\nX-Team-Id: evil",
}


def assert_refused(proxy: ProxyProcess, upstream: ScriptedUpstream, data: bytes) -> None:
    num_seen = len(upstream.requests)
    answer = proxy.raw(data)
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 417", b"HTTP/1.1 501"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1, "the connection must close after a refusal"
    assert upstream.requests[num_seen:] == []


@pytest.mark.parametrize("headers", CASES.values(), ids=CASES.keys())
def test_ambiguous_headers_and_framing_are_refused(
    proxy: ProxyProcess, upstream: ScriptedUpstream, headers: bytes
) -> None:
    assert_refused(proxy, upstream, HEAD + headers + SMUGGLED)


@pytest.mark.parametrize("line", REQUEST_LINES.values(), ids=REQUEST_LINES.keys())
def test_unusual_request_lines_are_refused(
    proxy: ProxyProcess, upstream: ScriptedUpstream, line: bytes
) -> None:
    head = line + b"\r\nHost: p\r\n" + AUTH + b"Content-Length: 0\r\n\r\n"
    assert_refused(proxy, upstream, head + SMUGGLED)


def test_urls_and_repeated_expectations_arrive_as_one_plain_request(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    expect = b"Expect: 100-continue\r\nExpect: 100-Continue, 100-continue\r\n"
    head = b"POST HTTP://elsewhere:80/by-url?a=b HTTP/1.1\r\nHost: p\r\n" + AUTH + expect
    with proxy.connect() as sock:
        sock.sendall(head + b"Content-Length: 5\r\n\r\n")
        assert receive(sock) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hello")
        assert receive(sock).startswith(b"HTTP/1.1 200 OK\r\n")
    (seen,) = [each for each in upstream.requests if each.target == "/by-url?a=b"]
    assert seen.body == b"hello"
    assert seen.headers["x-forwarded-host"] == "elsewhere:80"
    assert "expect" not in seen.headers


def test_pipelined_requests_are_two_requests(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    first = HEAD + b"Content-Length: 3\r\n\r\nabc"
    answer = proxy.raw(first + SMUGGLED.replace(b"/smuggled", b"/second"), num_answers=2)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert [r.target for r in upstream.requests[-2:]] == ["/victim", "/second"]


def test_unread_body_of_a_refused_request_is_no_request(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    num_seen = len(upstream.requests)
    head = b"POST /refused HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
    assert proxy.raw(head + SMUGGLED).count(b"HTTP/1.1 401") == 1
    assert upstream.requests[num_seen:] == []


def test_framing_towards_the_upstream_is_the_proxys_own(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n"
    proxy.raw(HEAD.replace(b"/victim", b"/own") + body)
    (seen,) = upstream.seen("/own")
    assert seen.body == b"hello"
    assert seen.headers["content-length"] == "5"
    assert "transfer-encoding" not in seen.headers
    assert "x-trailer" not in seen.headers
