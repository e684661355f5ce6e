"""Relaying through a real proxy when an upstream breaks, or its client leaves."""

import socket
import threading

import pytest
import requests

from tests.proxy.relayed import post, read_head
from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    running_proxy,
    until,
)


@pytest.mark.parametrize("manner", ["close", "reset", "garbage_chunk"])
def test_upstream_that_breaks_mid_stream_breaks_the_clients_body(
    proxy: ProxyProcess, upstream: ScriptedUpstream, manner: str
) -> None:
    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"half an ")
        gate.wait(DEADLINE_S)
        if manner == "garbage_chunk":
            peer.send(b"this is not a chunk size\r\n")
        peer.reset() if manner == "reset" else peer.close()

    gate = threading.Event()
    upstream.scripts[f"/dies/{manner}"] = script
    with proxy.begin(f"/dies/{manner}") as sock:
        read_head(sock)
        assert sock.recv(100) == b"8\r\nhalf an \r\n"
        gate.set()
        assert sock.recv(100) == b""  # and no "0\r\n\r\n" before it
    line = proxy.audit_of(f"/dies/{manner}")
    assert (line["status"], line["outcome"]) == (200, "upstream_broke")


def test_body_shorter_than_its_content_length_is_broken_for_the_client(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
        peer.close()

    upstream.scripts["/short"] = script
    with pytest.raises(requests.exceptions.ChunkedEncodingError, match="IncompleteRead"):
        post(proxy, "/short")


def test_old_client_is_reset_when_its_unframed_body_breaks(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"half")
        peer.close()

    upstream.scripts["/old"] = script
    with proxy.begin("/old", version="1.0") as sock, pytest.raises(ConnectionResetError):
        b"".join(iter(lambda: sock.recv(100), b""))


@pytest.mark.parametrize(
    "head",
    [
        b"ceci n'est pas HTTP\r\n\r\n",
        b"\0\1\2\3" * 5000,
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Name: x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Nul: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70000 + b"\r\n\r\n",
        b"",
    ],
    ids=[
        "text",
        "binary",
        "status",
        "low status",
        "upgrade",
        "name",
        "nul",
        "lengths",
        "words",
        "coding",
        "long",
        "nothing",
    ],
)
def test_garbage_instead_of_a_head_is_a_502(
    proxy: ProxyProcess, upstream: ScriptedUpstream, head: bytes
) -> None:
    def script(peer: Peer) -> None:
        peer.send(head)
        peer.close()

    upstream.scripts["/garbage"] = script
    reply = post(proxy, "/garbage")
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "upstream_broken"


def test_length_beside_chunks_is_a_502(proxy: ProxyProcess, upstream: ScriptedUpstream) -> None:
    """RFC 9112, section 6.3: such an answer ought to be handled as an error."""
    upstream.scripts["/both"] = lambda peer: peer.send(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n0\r\n\r\n"
    )
    assert post(proxy, "/both").status_code == 502


def test_reset_before_the_head_is_a_502(proxy: ProxyProcess, upstream: ScriptedUpstream) -> None:
    upstream.scripts["/reset"] = Peer.reset
    assert post(proxy, "/reset").status_code == 502


def test_client_that_leaves_mid_stream_closes_the_upstream(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    is_closed: list[bool] = []

    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"first")
        is_closed.append(peer.wait_until_closed_by_proxy())

    upstream.scripts["/leave"] = script
    with proxy.begin("/leave") as sock:
        read_head(sock)
    until(lambda: is_closed, "the upstream's end")
    assert is_closed == [True]
    assert proxy.audit_of("/leave")["outcome"] == "client_gone"


def test_client_that_leaves_while_queued_closes_the_upstream(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    """Before any head: the proxy's thread waits for the upstream and nothing is written."""
    arrived, is_closed = threading.Event(), []

    def script(peer: Peer) -> None:
        arrived.set()
        is_closed.append(peer.wait_until_closed_by_proxy())

    upstream.scripts["/queued"] = script
    with proxy.begin("/queued"):
        assert arrived.wait(DEADLINE_S)
    until(lambda: is_closed, "the upstream's end")
    assert is_closed == [True]
    line = proxy.audit_of("/queued")
    assert (line["status"], line["outcome"]) == (499, "client_gone")


def test_half_closed_client_counts_as_gone(proxy: ProxyProcess, upstream: ScriptedUpstream) -> None:
    arrived, is_closed = threading.Event(), []

    def script(peer: Peer) -> None:
        arrived.set()
        is_closed.append(peer.wait_until_closed_by_proxy())

    upstream.scripts["/half"] = script
    with proxy.begin("/half") as sock:
        assert arrived.wait(DEADLINE_S)
        sock.shutdown(socket.SHUT_WR)
        until(lambda: is_closed, "the upstream's end")
    assert is_closed == [True]
    assert proxy.audit_of("/half")["outcome"] == "client_gone"


def test_client_that_closes_in_its_body_is_never_forwarded(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    with proxy.connect() as sock:
        authorization = bearer()["Authorization"]
        sock.sendall(
            f"POST /cut HTTP/1.1\r\nHost: p\r\nAuthorization: {authorization}\r\n"
            "Content-Length: 100\r\n\r\nonly this".encode()
        )
    assert proxy.audit_of("/cut")["outcome"] == "client_gone"
    assert upstream.seen("/cut") == []


def code_of(reply: requests.Response) -> str:
    assert reply.status_code == 502
    return str(reply.json()["error"]["code"])


def test_upstream_restart_is_survived_by_the_next_request(
    proxy: ProxyProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, directory = ScriptedUpstream(), tmp_path_factory.mktemp("restart")
    # Only requests find out: a health check between them would be answered for them.
    with running_proxy(directory, first.url, HEALTH_INTERVAL="30") as own:
        assert post(own, "/one").status_code == 200
        first.stop()
        until(lambda: code_of(post(own, "/two")) == "upstream_unreachable", "a refused connection")
        second = ScriptedUpstream(port=first.port)
        assert post(own, "/three").status_code == 200
        second.stop()


def test_upstream_that_hangs_before_its_head_is_a_504(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    upstream.scripts["/hang"] = Peer.wait_until_closed_by_proxy
    directory = tmp_path_factory.mktemp("hang")
    with running_proxy(directory, upstream.url, FIRST_BYTE_TIMEOUT="0.3") as own:
        reply = post(own, "/hang")
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "upstream_timeout"
