"""Streams as servers really send them, in pieces of any size, over any connection."""

import datetime
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarking.load.answers import AnswerFault, ChatStream, TextAnswer, error_text
from benchmarking.load.generator import LoadJob, TimedExchange
from benchmarking.load.process import run_load
from benchmarking.load.targets import Endpoint, Prompt

pytestmark = pytest.mark.usefixtures("forked_loads")

USAGE = {"prompt_tokens": 2, "completion_tokens": 3}


def event(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def read(*pieces: bytes) -> ChatStream:
    """Each piece is read a second after the one before."""
    answer = ChatStream()
    for now_s, piece in enumerate(pieces, start=1):
        answer.feed(piece, float(now_s))
    return answer


def test_only_text_is_an_event() -> None:
    answer = read(
        event({"role": "assistant"}),
        event({"role": "assistant", "content": ""}),
        b": keep-alive\n\n",
        event({"content": "a"}, usage=None),
        event({"reasoning_content": "b"}),
        event({"content": None}),
        event({"content": "c"}, "stop"),
        b"data: [DONE]\n\n",
    )
    assert answer.chunk_texts == ["a", "b", "c"]
    assert answer.chunk_s == [4.0, 5.0, 7.0]
    assert answer.finish_reason == "stop"
    answer.finish()


def test_thought_told_under_two_names_counts_once() -> None:
    answer = read(
        event({"reasoning": "a", "reasoning_content": "a"}),
        event({"reasoning": "b", "content": None}),
        event({"reasoning_content": "c", "content": "d"}),
    )
    assert answer.chunk_texts == ["a", "b", "c", "d"]
    assert answer.chunk_s == [1.0, 2.0, 3.0, 3.0]


def test_text_beside_usage_is_not_lost() -> None:
    answer = read(event({"content": "last"}, "length", usage=USAGE))
    assert (answer.chunk_texts, answer.usage) == (["last"], USAGE)


def test_usage_comes_with_choices_or_without() -> None:
    last = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
    answer = read(event({"content": "a"}, usage={"completion_tokens": 1}), last)
    assert answer.usage == {"completion_tokens": 3}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_may_be_cut_anywhere(newline: bytes) -> None:
    stream = (event({"content": "ä"}) + event({"content": "b"}, "stop")).replace(b"\n", newline)
    for at in range(len(stream) - 2 * len(newline)):
        answer = read(stream[:at], stream[at:])
        assert answer.chunk_texts == ["ä", "b"]
        assert answer.chunk_s[1] == 2.0


@pytest.mark.parametrize(
    "payload",
    ["{", "[]", "3", '{"choices": [3]}', '{"choices": 1}'],
)
def test_what_is_no_event_is_a_fault_that_shows_it(payload: str) -> None:
    with pytest.raises(AnswerFault) as fault:
        read(f"data: {payload}\n\n".encode())
    assert fault.value.code == "protocol"
    assert payload in str(fault.value)


def test_bare_text_keeps_characters_whole() -> None:
    answer = TextAnswer()
    for now_s, piece in enumerate(("ä".encode()[:1], "ä".encode()[1:], b"b")):
        answer.feed(piece, float(now_s))
    assert (answer.chunk_texts, answer.chunk_s) == (["ä", "b"], [1.0, 2.0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"message": "busy"}', "busy"),
        (b'{"error": "no"}', "no"),
        (b"<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        (b"[]", "[]"),
        (b"", "no message"),
    ],
)
def test_an_error_answer_of_any_shape_has_a_message(body: bytes, message: str) -> None:
    assert error_text(body) == message


@contextmanager
def raw_server(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answers every connection with these bytes and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = Event()

    def serve() -> None:
        while not is_over.is_set():
            connection, _ = listener.accept()
            with connection:
                try:
                    if tls is not None:
                        connection = tls.wrap_socket(connection, server_side=True)
                    if connection.recv(65536):
                        connection.sendall(answer)
                except OSError:
                    continue  # only tried whether somebody listens
                finally:
                    connection.close()

    thread = Thread(target=serve, name="raw-server")
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
    finally:
        is_over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
        listener.close()


def exchanged(base: str) -> TimedExchange:
    target = Endpoint("openai", base)
    request = target.request("m", Prompt("p", "text", 1), 1)
    job = LoadJob(target.address, (request,), target.answer, time.monotonic(), 20.0, 20.0)
    (exchange,) = run_load(job, lambda progress: None, Event()).exchanges
    return exchange


BODY = event({"content": "a"}, "stop") + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY),
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
    ids=["length", "until closed", "after 100"],
)
def test_a_body_ends_as_its_head_says(head: bytes) -> None:
    with raw_server(head + BODY) as base:
        exchange = exchanged(base)
    assert exchange.error is None
    assert exchange.chunk_texts == ["a"]


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (b"hello\r\n\r\n", "protocol", "not an HTTP answer"),
        (b"", "connection", "before an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", "connection", "in the middle"),
        (b"HTTP/1.1 502 -\r\n\r\n<h1>gateway</h1>", "502", "<h1>gateway</h1>"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(answer: bytes, code: str, message: str) -> None:
    with raw_server(answer) as base:
        error = exchanged(base).error
    assert error is not None
    assert error.code == code
    assert message in error.message


def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path / "certificate.pem"))
    with raw_server(b"HTTP/1.0 200 OK\r\n\r\n" + BODY, context) as base:
        refused = exchanged(base).error
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        trusted = exchanged(base)
    assert refused is not None
    assert refused.code == "connection"
    assert "certificate verify failed" in refused.message.lower()
    assert (trusted.error, trusted.chunk_texts) == (None, ["a"])


def certificate(path: Path) -> Path:
    """For 127.0.0.1, signed by itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime.datetime.now(datetime.UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    no_password = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, pkcs8, no_password) + signed.public_bytes(pem))
    return path
