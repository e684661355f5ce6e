"""Relaying through a real proxy: what passes, and how soon."""

import http.client
import json
import threading
from itertools import combinations

import pytest
import requests

from proxy.upstreams.headers import without_address
from tests.proxy.relayed import post, read_head
from tests.proxy.support import (
    DEADLINE_S,
    LAST_CHUNK,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    make_token,
)


def test_method_target_and_body_arrive_unchanged(proxy: ProxyProcess) -> None:
    target = "/any%2Fpath/%C3%A9;x=1?q=a%20b&q=2"
    url = proxy.url + target
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        seen = requests.request(
            method, url, headers=bearer(), data=b"\0\xff", timeout=DEADLINE_S
        ).json()
        assert (seen["method"], seen["target"], seen["body"]) == (method, target, "\0\xff")


def test_identity_is_set_by_the_proxy_and_claims_of_clients_are_dropped(
    proxy: ProxyProcess,
) -> None:
    claims = {
        "X-Team-Id": "evil",
        "x-token-id": "evil",
        "X-Request-Id": "evil",
        "X-Forwarded-For": "evil",
        "X-Forwarded-Anything": "evil",
        "X-Real-IP": "evil",
        "Forwarded": "for=evil",
        "Connection": "X-Nominated, keep-alive",
        "X-Nominated": "evil",
        "Proxy-Authorization": "evil",
        "TE": "trailers",
        "Keep-Alive": "timeout=5",
        "X-Kept": "yes",
    }
    reply = requests.get(f"{proxy.url}/identity", headers=bearer() | claims, timeout=DEADLINE_S)
    seen = reply.json()["headers"]
    assert "evil" not in json.dumps(seen)
    assert seen["x-team-id"] == "team-a"
    assert seen["x-token-id"] == "token-1"
    assert seen["x-request-id"] == reply.headers["X-Request-Id"]
    assert seen["x-forwarded-for"] == "127.0.0.1"
    assert seen["x-forwarded-host"] == f"127.0.0.1:{proxy.port}"
    assert seen["x-forwarded-proto"] == "http"
    assert seen["x-kept"] == "yes"
    assert not {"authorization", "te", "keep-alive", "proxy-authorization"} & set(seen)


def test_refusals_of_messages_are_anthropics(proxy: ProxyProcess) -> None:
    reply = requests.post(f"{proxy.url}/v1/messages?beta=true", json={}, timeout=DEADLINE_S)
    assert reply.status_code == 401
    request_id = reply.headers["request-id"]
    assert request_id == reply.headers["X-Request-Id"]
    error = {"type": "authentication_error", "message": "A valid Bearer token is required."}
    assert reply.json() == {"type": "error", "error": error, "request_id": request_id}


NAMES = ("Authorization", "X-Api-Key", "api-key")
TOKEN = make_token()
OTHER = make_token(token_id="other")


@pytest.mark.parametrize("names", [each for n in range(4) for each in combinations(NAMES, n)])
def test_a_token_may_come_in_any_header_and_goes_no_further(
    proxy: ProxyProcess, names: tuple[str, ...]
) -> None:
    """The same token in several is one; two different ones are refused, valid or not."""

    def ask(*tokens: str) -> requests.Response:
        sent = {
            name: f"bearer  {token}" if name == "Authorization" else token
            for name, token in zip(names, tokens, strict=True)
        }
        return requests.get(f"{proxy.url}/key", headers=sent, timeout=DEADLINE_S)

    answer = ask(*[TOKEN] * len(names))
    assert answer.status_code == (200 if names else 401)
    assert TOKEN not in answer.text
    for forged in ("sk-1", ""):
        assert ask(*[forged] * len(names)).status_code == 401
    for other in (OTHER, "sk-1"):
        for at in range(len(names) if len(names) > 1 else 0):
            refused = ask(*[other if at == number else TOKEN for number in range(len(names))])
            assert refused.status_code == 401
    written = proxy.log() + proxy.audit_file.read_text()
    assert not any(each in written for each in (TOKEN, OTHER))


def test_underscore_spelling_of_an_identity_header_does_not_pass(proxy: ProxyProcess) -> None:
    head = b"GET /underscore HTTP/1.1\r\nHost: p\r\nX_Team_Id: evil\r\nAuthorization: %b\r\n\r\n"
    answer = proxy.raw(head % bearer()["Authorization"].encode())
    assert b"evil" not in answer
    assert b'"x-team-id": "team-a"' in answer


@pytest.mark.parametrize(
    ("upstream_url", "location", "passed"),
    [
        ("http://api:7000", "http://api:7000/docs/?a=b#c", "/docs/?a=b#c"),
        ("http://api:7000", "//API:7000/docs/", "/docs/"),
        ("http://api:7000", "http://api:7000", "/"),
        ("http://api:7000", "http://me@api:7000//evil.example/", "/evil.example/"),
        ("http://api:7000", "http://api:7000/\\evil.example/", "/evil.example/"),
        ("http://api", "http://api:80/x", "/x"),
        ("https://api/base", "https://api/base/x", "/x"),
        ("http://api:7000", "5; url=http://api:7000/x", "5; url=/x"),
        ("http://api:7000", "/login?next=http://api:7000/x", "/login?next=/x"),
        ("http://api:7000", "http://other:7000/x", "http://other:7000/x"),
        ("http://api:7000", "http://api:8000/x", "http://api:8000/x"),
        ("http://api:7000", "http://api:port/x", "http://api:port/x"),
        ("http://api:7000", "/x", "/x"),
    ],
)
def test_redirect_names_no_address_of_an_upstream(
    upstream_url: str, location: str, passed: str
) -> None:
    assert without_address(location, upstream_url) == passed


def test_redirects_and_cookies_of_an_upstream_stay_inside(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    upstream.scripts["/moved"] = lambda peer: peer.reply(
        b"",
        "308 Permanent Redirect",
        f"Location: {upstream.url}/there?a=b",
        f"Content-Location: {upstream.url}/here",
        "Set-Cookie: hearth_token=theirs",
        "Access-Control-Allow-Origin: *",
    )
    reply = requests.get(
        proxy.url + "/moved", headers=bearer(), allow_redirects=False, timeout=DEADLINE_S
    )
    assert reply.status_code == 308
    assert (reply.headers["Location"], reply.headers["Content-Location"]) == ("/there?a=b", "/here")
    assert str(upstream.port) not in str(reply.headers)
    assert "Set-Cookie" not in reply.headers
    assert "Access-Control-Allow-Origin" not in reply.headers


def test_what_browsers_say_of_their_pages_ends_at_the_proxy(proxy: ProxyProcess) -> None:
    said = {
        "Origin": "http://page.example",
        "Cookie": "hearth_token=secret; other=secret",
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "cors",
        "Access-Control-Request-Method": "POST",
    }
    reply = requests.get(f"{proxy.url}/page", headers=bearer() | said, timeout=DEADLINE_S)
    seen = reply.json()["headers"]
    assert {name.lower() for name in said} & set(seen) == set()


def test_upstream_errors_pass_whole(proxy: ProxyProcess, upstream: ScriptedUpstream) -> None:
    body = b'{"message": "Service overloaded, try again later."}'
    upstream.scripts["/busy"] = lambda peer: peer.reply(
        body, "503 Service Unavailable", "Retry-After: 7", "Content-Type: application/json"
    )
    reply = post(proxy, "/busy")
    assert (reply.status_code, reply.content) == (503, body)
    assert reply.headers["Retry-After"] == "7"


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_each_piece_is_passed_on_before_the_next_one_exists(
    proxy: ProxyProcess, upstream: ScriptedUpstream, framing: str
) -> None:
    """A gate, not a clock: the upstream sends a piece only after the client has the one before."""
    gate = threading.Semaphore(0)
    pieces = [b"tok%02d" % i for i in range(20)]

    def script(peer: Peer) -> None:
        header = {
            "chunked": b"Transfer-Encoding: chunked",
            "length": b"Content-Length: 100",
            "close": b"Connection: close",
        }
        peer.send(b"HTTP/1.1 200 OK\r\n" + header[framing] + b"\r\n\r\n")
        for piece in pieces:
            assert gate.acquire(timeout=DEADLINE_S)
            peer.chunk(piece) if framing == "chunked" else peer.send(piece)
        if framing == "chunked":
            peer.end_stream()
        if framing == "close":
            peer.close()

    upstream.scripts[f"/gate/{framing}"] = script
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=DEADLINE_S)
    if framing == "length":
        gate.release()  # such a head may wait for its first piece
    connection.request("POST", f"/gate/{framing}", b"{}", bearer())
    reply = connection.getresponse()
    received = []
    for i in range(len(pieces)):
        if i or framing != "length":
            gate.release()
        received.append(reply.read1(100))
    assert received == pieces
    assert reply.read() == b""
    connection.close()


def test_large_chunks_arrive_byte_for_byte(proxy: ProxyProcess, upstream: ScriptedUpstream) -> None:
    chunks = [bytes([i]) * 65536 for i in range(40)]

    def script(peer: Peer) -> None:
        peer.begin_stream()
        for chunk in chunks:
            peer.chunk(chunk)
        peer.end_stream()

    upstream.scripts["/large"] = script
    assert post(proxy, "/large").content == b"".join(chunks)


def test_compressed_body_is_not_unpacked(proxy: ProxyProcess, upstream: ScriptedUpstream) -> None:
    upstream.scripts["/gzip"] = lambda peer: peer.reply(
        b"\x1f\x8bxx", "200 OK", "Content-Encoding: gzip"
    )
    reply = requests.get(proxy.url + "/gzip", headers=bearer(), timeout=DEADLINE_S, stream=True)
    assert reply.raw.read(decode_content=False) == b"\x1f\x8bxx"


@pytest.mark.parametrize("size", [0, 1, 262143, 262144, 262145, 3_000_000])
@pytest.mark.parametrize("is_chunked", [True, False])
def test_request_bodies_of_any_size_and_framing_arrive_whole(
    proxy: ProxyProcess, upstream: ScriptedUpstream, size: int, is_chunked: bool
) -> None:
    body = bytes(i % 251 for i in range(size))
    data = (body[i : i + 70_001] for i in range(0, size, 70_001)) if is_chunked else body
    upstream.scripts["/length"] = lambda peer: peer.reply(b"%d" % len(peer.request.body))
    reply = requests.post(proxy.url + "/length", headers=bearer(), data=data, timeout=DEADLINE_S)
    assert reply.text == str(size)
    assert upstream.seen("/length")[-1].body == body


@pytest.mark.parametrize("is_chunked", [True, False])
def test_body_over_the_bound_is_refused_with_413(proxy: ProxyProcess, is_chunked: bool) -> None:
    body = b"x" * (4 * 1024 * 1024 + 1)
    data = iter([body[:-1], b"x"]) if is_chunked else body
    try:
        reply = requests.post(proxy.url + "/huge", headers=bearer(), data=data, timeout=DEADLINE_S)
    except requests.ConnectionError:
        pass  # refused while it was still being sent
    else:
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "request_too_large"
    assert proxy.audit_of("/huge")["status"] == 413


def test_upstream_that_answers_early_is_heard(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    upstream.scripts["/early"] = lambda peer: peer.reply(b"no", "401 Unauthorized")
    assert post(proxy, "/early").text == "no"


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_bodyless_answers_pass(
    proxy: ProxyProcess, upstream: ScriptedUpstream, method: str
) -> None:
    def script(peer: Peer) -> None:
        if method == "HEAD":
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        else:
            peer.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    upstream.scripts["/empty"] = script
    with requests.Session() as session:
        for _ in range(3):  # on one connection: the framing must be right
            reply = session.request(
                method, proxy.url + "/empty", headers=bearer(), timeout=DEADLINE_S
            )
            assert reply.status_code == (200 if method == "HEAD" else 204)
            assert reply.content == b""


def test_connections_to_the_upstream_are_used_again(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    upstream.scripts["/again"] = echo_connections
    # The next request may come a moment before the last connection is back in the pool.
    assert len({post(proxy, "/again").text for _ in range(10)}) < 5


def echo_connections(peer: Peer) -> None:
    peer.reply(b"%d" % peer.sock.getpeername()[1])


def test_slow_reader_gets_everything_and_holds_nobody_else(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    size = 8 * 1024 * 1024  # beyond all socket buffers on the way

    def script(peer: Peer) -> None:
        peer.begin_stream()
        for _ in range(size // 65536):
            peer.chunk(b"x" * 65536)
        peer.end_stream()

    upstream.scripts["/slow"] = script
    with proxy.begin("/slow") as slow:
        read_head(slow)
        assert post(proxy, "/meanwhile").status_code == 200
        num_received, tail = 0, b""
        while tail != LAST_CHUNK and (piece := slow.recv(65536)):
            num_received += len(piece)
            tail = (tail + piece)[-len(LAST_CHUNK) :]
    assert num_received > size
