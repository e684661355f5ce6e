"""Pages of other servers: whole within their bounds, or refused, whatever listens there."""

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from common.fetch import FetchBounds, FetchFailed, FetchLate, answers_ok, ask, fetch

BOUNDS = FetchBounds(connect_s=5, read_s=5, max_bytes=1000)
OK_PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage"
SHORT = FetchBounds(connect_s=5, read_s=0.2, max_bytes=1000)
Listen = Callable[[bytes, bytes], str]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Starts a server that says the first bytes at once, and the others again and again until its
    client has gone; returns its address."""
    servers: list[socket.socket] = []
    threads: list[Thread] = []

    def start(said: bytes, dripped: bytes = b"") -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threads.append(Thread(target=_answer, args=(server, said, dripped), name="drips"))
        threads[-1].start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join()
    for server in servers:
        server.close()


def _answer(server: socket.socket, said: bytes, dripped: bytes) -> None:
    client, _ = server.accept()
    pause = Event()
    with client, suppress(OSError):
        client.settimeout(10)
        client.recv(65536)
        client.sendall(said)
        while dripped and not pause.wait(0.02):
            client.sendall(dripped)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\npa\r\n2\r\nge\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\npage",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage",
    ],
)
def test_page_comes_however_its_end_is_said(listen: Listen, said: bytes) -> None:
    assert fetch(f"http://{listen(said, b'')}/metrics?a=b", BOUNDS) == b"page"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\npage", "answers 404"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npage", "5 bytes are missing"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\npage", "IncompleteRead"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + bytes(1001), "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n" + bytes(1001), "1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", "headers"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"", "closed connection"),
    ],
)
def test_anything_else_is_refused_with_its_reason(listen: Listen, said: bytes, reason: str) -> None:
    with pytest.raises(FetchFailed, match=reason):
        fetch(f"http://{listen(said, b'')}/", BOUNDS)


@pytest.mark.parametrize(
    ("said", "dripped"),
    [
        (b"HTTP/1.1 200 O", b"K"),
        (b"HTTP/1.1 200 OK\r\na: ", b"b"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"x"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_server_that_drips_is_left_in_time(listen: Listen, said: bytes, dripped: bytes) -> None:
    with pytest.raises(FetchFailed, match=r"took more than 0\.2 s"):
        fetch(f"http://{listen(said, dripped)}/", SHORT)


def test_handshake_that_drips_is_left_in_time(listen: Listen) -> None:
    half_a_record = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"
    with pytest.raises(FetchFailed) as caught:
        fetch(f"https://{listen(half_a_record, b'x')}/", SHORT)
    assert isinstance(caught.value.__cause__, ssl.SSLError | OSError)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://", "http://[::1/", "http://127.0.0.1:99999/", "nothing"]
)
def test_what_is_no_server_is_said(url: str) -> None:
    with pytest.raises(FetchFailed, match=r"^\S"):
        fetch(url, BOUNDS)


@pytest.mark.parametrize("url", ["localhost:7000", "127.0.0.1:7000/v1", "//h", "ftp://h", ""])
def test_an_address_without_its_scheme_is_not_asked_for_at_another_port(url: str) -> None:
    with pytest.raises(FetchFailed, match="is no address; give one like"):
        fetch(url, BOUNDS)


TOP = Path(__file__).parents[2]
PACKAGES = ("common", "inference_api", "proxy", "optimizer", "weights", "benchmarking", "cluster")
CLIENTS = re.compile(r"^\s*(import requests|import http\.client|from urllib\.request|import httpx)")
# Who has another client, and why.
OTHERS = {
    "benchmarking/load/": "measures servers, and keeps connections",
}


def test_no_product_module_asks_other_servers_otherwise() -> None:
    found = [
        f"{path.relative_to(TOP)}: {line.strip()}"
        for package in (*PACKAGES, "scripts")
        for path in sorted((TOP / package).rglob("*.py"))
        if not str(path.relative_to(TOP)).startswith(tuple(OTHERS))
        for line in path.read_text(encoding="utf-8").splitlines()
        if CLIENTS.match(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE"])
def test_body_is_sent_as_json_and_any_status_is_an_answer(listen: Listen, verb: str) -> None:
    said = b'HTTP/1.1 409 Conflict\r\nContent-Length: 13\r\n\r\n{"why":"old"}'
    answer = ask(f"http://{listen(said, b'')}/x", BOUNDS, verb, {"a": [1, "\u00e9"]})
    assert (answer.status, answer.json()) == (409, {"why": "old"})


def test_environment_names_no_proxy(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert answers_ok(f"http://{listen(OK_PAGE, b'')}/", BOUNDS)


def test_one_that_is_late_differs_from_one_that_is_away(listen: Listen) -> None:
    with pytest.raises(FetchLate):
        ask(f"http://{listen(b'HTTP/1.1 2', b'0')}/", SHORT)
    with pytest.raises(FetchFailed) as caught:
        ask("http://127.0.0.1:1/", SHORT)
    assert not isinstance(caught.value, FetchLate)
