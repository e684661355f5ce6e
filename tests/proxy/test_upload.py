"""Bodies that are still on their way when their answer has begun."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.proxy.support import DEADLINE_S, bearer, make_token, running_proxy, until

BEGINNING = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"


class Early:
    """An upstream that answers before it has read a body, and ends its answer when it is told."""

    def __init__(self) -> None:
        self.received: list[bytearray] = []  # of each connection
        self.may_end = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def all_received(self, mark: bytes) -> list[bytearray]:
        return [received for received in self.received if mark in received]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(sock,), daemon=True).start()

    def _converse(self, sock: socket.socket) -> None:
        received = bytearray()
        self.received.append(received)
        num_answers = 0
        with sock:
            while piece := sock.recv(65536):
                received += piece
                while received.count(b" HTTP/1.1\r\n") > num_answers:
                    num_answers += 1
                    if b"/early" in received and num_answers == 1:
                        sock.sendall(BEGINNING)
                        threading.Thread(target=self._end, args=(sock,), daemon=True).start()
                    else:
                        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def _end(self, sock: socket.socket) -> None:
        self.may_end.wait(DEADLINE_S)
        sock.sendall(b"0\r\n\r\n")


@pytest.fixture
def early() -> Iterator[Early]:
    upstream = Early()
    yield upstream
    upstream.stop()


def test_connection_that_did_not_get_all_of_a_body_takes_no_further_request(
    early: Early, tmp_path: Path
) -> None:
    """It would take it for the rest of that body."""
    with running_proxy(tmp_path, early.url) as proxy, proxy.connect() as sock:
        sock.sendall(
            b"POST /early HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n"
            + f"Authorization: Bearer {make_token()}\r\n\r\n".encode()
            + b"%x\r\n%b\r\n" % (400_000, b"x" * 400_000)
        )
        received = b""
        while b"hi" not in received:
            received += sock.recv(65536)
        sock.sendall(b"this is no chunk\r\n")
        until(lambda: sum(map(len, early.all_received(b"/early"))) > 400_000, "what came of it")
        requests.get(proxy.url + "/health", timeout=DEADLINE_S)  # behind the broken chunk
        early.may_end.set()
        while piece := sock.recv(65536):
            received += piece
        assert received.endswith(b"0\r\n\r\n")
        reply = requests.get(proxy.url + "/second", headers=bearer(), timeout=DEADLINE_S)
        assert reply.text == "{}"
        (first,) = early.all_received(b"/early")
        assert b"/second" not in first
    until(lambda: proxy.process.poll() is not None, "its end")
    assert "never retrieved" not in proxy.log()
    assert "Traceback" not in proxy.log()
