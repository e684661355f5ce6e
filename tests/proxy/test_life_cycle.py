"""Start, drain, reload, probes, TLS and records of a real proxy process."""

import signal
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.ports import free_port
from tests.proxy.support import (
    DEADLINE_S,
    LAST_CHUNK,
    ROOT,
    SECRET,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    make_token,
    receive,
    running_proxy,
    until,
)


class Gate:
    """A stream that sends one piece, waits to be let on, and sends the rest."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"first ")
        self.opened.wait(DEADLINE_S)
        peer.chunk(b"last")
        peer.end_stream()


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def test_drain_lets_running_streams_end_and_answers_503_meanwhile(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gate = upstream.scripts["/drain"] = Gate()
    with running_proxy(tmp_path, upstream.url) as proxy, proxy.begin("/drain") as stream:
        assert b"200 OK" in stream.recv(1000)
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in proxy.metric("/ready"), "the drain")
        refused = requests.get(proxy.url + "/new", headers=bearer(), timeout=DEADLINE_S)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["Connection"] == "close"
        assert requests.get(proxy.url + "/ready", timeout=DEADLINE_S).status_code == 503
        gate.opened.set()
        assert read_all(stream).endswith(b"4\r\nlast" + LAST_CHUNK)
        assert proxy.process.wait(DEADLINE_S) == 0


def test_stream_longer_than_the_drain_is_cut_and_not_ended(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.scripts["/endless"] = Gate()
    with (
        running_proxy(tmp_path, upstream.url, DRAIN_TIMEOUT="0.3") as proxy,
        proxy.begin("/endless") as stream,
    ):
        received = b""
        while b"first" not in received:
            received += receive(stream)
        proxy.process.send_signal(signal.SIGTERM)
        assert LAST_CHUNK not in received + read_all(stream)
        assert proxy.process.wait(DEADLINE_S) == 0
        assert proxy.audit_of("/endless")["outcome"] == "drained"


def test_interrupt_cuts_streams_and_ends_at_once(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.scripts["/interrupted"] = Gate()
    with (
        running_proxy(tmp_path, upstream.url) as proxy,
        proxy.begin("/interrupted") as stream,
    ):
        assert b"200 OK" in stream.recv(1000)
        proxy.process.send_signal(signal.SIGINT)
        assert LAST_CHUNK not in read_all(stream)
        assert proxy.process.wait(DEADLINE_S) == 0


def test_idle_proxy_stops_at_once_with_kept_alive_connections_open(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    with running_proxy(tmp_path, upstream.url) as proxy, requests.Session() as session:
        session.get(proxy.url + "/x", headers=bearer(), timeout=DEADLINE_S)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(DEADLINE_S) == 0


def test_client_that_never_closes_does_not_hold_up_the_next_one(proxy: ProxyProcess) -> None:
    lingering = []
    for _ in range(20):
        sock = proxy.connect()
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in sock.recv(1000)
        lingering.append(sock)
    assert requests.get(proxy.url + "/health", timeout=DEADLINE_S).status_code == 200
    for sock in lingering:
        sock.close()


def test_client_that_takes_nothing_is_cut_off(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    is_closed: list[bool] = []

    def flood(peer: Peer) -> None:
        peer.begin_stream()
        try:
            while True:
                peer.chunk(b"x" * 65536)
        except OSError:
            is_closed.append(True)
            raise

    upstream.scripts["/flood"] = flood
    with (
        running_proxy(tmp_path, upstream.url, CLIENT_TIMEOUT="0.5") as proxy,
        proxy.begin("/flood"),
    ):
        assert proxy.audit_of("/flood")["outcome"] == "client_stalled"
        until(lambda: is_closed, "the upstream's end")


def test_client_that_does_not_finish_its_head_is_cut_off(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    with (
        running_proxy(tmp_path, upstream.url, HEAD_TIMEOUT="1.5") as proxy,
        proxy.connect() as silent,
        proxy.connect() as trickling,
    ):
        for sock in (silent, trickling):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        trickling.settimeout(0.05)
        until(lambda: trickle(trickling), "the end of it")
        assert silent.recv(1000).startswith(b"HTTP/1.1 408 ")


def trickle(sock: socket.socket) -> bool:
    """One more byte; True once the connection has ended."""
    try:
        sock.sendall(b"x")
        return sock.recv(1000).startswith(b"HTTP/1.1 408 ")
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_client_that_stops_in_its_body_gets_408(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with (
        running_proxy(tmp_path, upstream.url, BODY_TIMEOUT="0.3") as proxy,
        proxy.connect() as sock,
    ):
        sock.sendall(
            b"POST /trickle HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer "
            + make_token().encode()
            + b"\r\nContent-Length: 9\r\n\r\nabc"
        )
        assert sock.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_probes_need_no_token_and_follow_the_upstream(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    with running_proxy(tmp_path, upstream.url) as proxy:
        assert requests.get(proxy.url + "/health", timeout=DEADLINE_S).text == "OK"
        assert (
            requests.head(proxy.url + "/health", timeout=DEADLINE_S).headers["Content-Length"]
            == "2"
        )
        assert requests.get(proxy.url + "/ready", timeout=DEADLINE_S).json() == {"status": "ready"}
        upstream.scripts["/ready"], ready = (
            lambda peer: peer.reply(b"", "503 Loading"),
            upstream.scripts["/ready"],
        )
        url = proxy.url + "/ready"
        until(lambda: requests.get(url, timeout=DEADLINE_S).status_code == 503, "an unready proxy")
        upstream.scripts["/ready"] = ready
        until(lambda: requests.get(url, timeout=DEADLINE_S).status_code == 200, "a ready proxy")


def test_probes_and_refusals_work_while_every_place_is_taken(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gate = upstream.scripts["/all"] = Gate()
    with running_proxy(tmp_path, upstream.url, PROXY_REQUESTS="8") as proxy:
        streams = [proxy.begin("/all") for _ in range(8)]
        until(lambda: "hearth_proxy_in_flight 8.0" in proxy.metric("/metrics"), "8 streams")
        assert proxy.metric("/health") == "OK"
        assert requests.get(proxy.url + "/health", timeout=DEADLINE_S).text == "OK"
        team = bearer(role="team")
        refused = requests.get(proxy.url + "/v1/models", headers=team, timeout=DEADLINE_S)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        operator = requests.get(proxy.url + "/x", headers=bearer(), timeout=DEADLINE_S)
        assert operator.status_code == 200
        gate.opened.set()
        for stream in streams:
            stream.close()
        until(lambda: "hearth_proxy_in_flight 0.0" in proxy.metric("/metrics"), "their end")


def test_audit_line_says_who_what_and_how_but_never_the_text(
    proxy: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"secret answer")
        peer.end_stream()

    upstream.scripts["/inference/falcon40b"] = script
    reply = requests.post(
        proxy.url + "/inference/falcon40b?key=secret",
        json={"text": "secret prompt"},
        headers=bearer(),
        timeout=DEADLINE_S,
    )
    line = proxy.audit_of("/inference/falcon40b")
    assert "secret" not in proxy.audit_file.read_text()
    assert line["request_id"] == reply.headers["X-Request-Id"]
    assert (line["team_id"], line["token_id"]) == ("team-a", "token-1")
    assert (line["method"], line["status"], line["outcome"]) == ("POST", 200, "complete")
    assert (line["model"], line["upstream"]) == ("falcon40b", f"127.0.0.1:{upstream.port}")
    assert (line["bytes_in"], line["bytes_out"], line["completion_tokens"]) == (25, 13, 4)
    assert 0 < line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]  # type: ignore[operator]
    metrics = proxy.metric("/metrics")
    assert (
        'hearth_proxy_requests_total{outcome="complete",status="200",team_id="team-a"}' in metrics
    )
    assert 'hearth_proxy_tokens_total{kind="completion",team_id="team-a"}' in metrics


def test_secret_is_in_no_log(proxy: ProxyProcess) -> None:
    assert SECRET not in proxy.log()


@pytest.mark.parametrize(
    "command", [("-m", "proxy"), (str(ROOT / "proxy" / "proxy.py"),)], ids=["module", "script"]
)
def test_other_ways_to_start_it_take_the_options_of_the_command_line(
    upstream: ScriptedUpstream, tmp_path: Path, command: tuple[str, ...]
) -> None:
    port = free_port()
    options = ("--port", str(port), "--hostname", "127.0.0.1")
    with running_proxy(
        tmp_path, upstream.url, *options, command=command, port=port, PROXY_PORT="1"
    ) as proxy:
        assert (
            requests.get(proxy.url + "/x", headers=bearer(), timeout=DEADLINE_S).json()["target"]
            == "/x"
        )


def test_script_works_from_another_directory(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "proxy" / "proxy.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert "--hostname" in result.stdout


def test_start_up_lists_every_fault_and_no_secret(tmp_path: Path) -> None:
    environment = {
        "PROXY_PORT": "ninety",
        "JWT_ALGORITHMS": "HS256,RS256,none",
        "UPSTREAMS_FILE": str(tmp_path / "absent.yaml"),
        "JWT_SECRET": "short-secret",
        "PROXY_HOST": "0.0.0.0",
    }
    for command in (["-m", "proxy"], ["-m", "gunicorn", "--config", "proxy/gunicorn.conf.py"]):
        result = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert result.returncode == 1
        for part in (
            "PROXY_PORT='ninety'",
            "'none' is not one of",
            "set JWKS_FILE or JWKS_URL",
            "UPSTREAMS_FILE",
            "JWT_SECRET is under 32 bytes",
        ):
            assert part in result.stderr
        assert "short-secret" not in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "command", [["-m", "proxy"], ["-m", "gunicorn", "--config", "proxy/gunicorn.conf.py"]]
)
def test_faulty_files_stop_the_start_up_together(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "policy.yaml").write_text("teams: [a]")
    (tmp_path / "upstreams.yaml").write_text("upstreams:")
    result = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={
            "JWT_SECRET": SECRET,
            "PROXY_PORT": str(free_port()),
            "POLICY_FILE": str(tmp_path / "policy.yaml"),
            "UPSTREAMS_FILE": str(tmp_path / "upstreams.yaml"),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode
    assert "must be mappings" in result.stderr
    assert "expected a list" in result.stderr
    assert "Traceback" not in result.stderr


def test_streams_and_disconnects_through_gunicorns_own_tls(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    key, certificate = make_certificate(tmp_path)
    is_closed: list[bool] = []

    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"first")
        is_closed.append(peer.wait_until_closed_by_proxy())

    upstream.scripts["/tls"] = script
    context = ssl.create_default_context(cafile=str(certificate))
    with running_proxy(
        tmp_path, upstream.url, "--certfile", str(certificate), "--keyfile", str(key)
    ) as proxy:
        reply = requests.get(
            proxy.url.replace("127.0.0.1", "localhost") + "/x",
            headers=bearer(),
            verify=str(certificate),
            timeout=DEADLINE_S,
        )
        assert reply.json()["headers"]["x-forwarded-proto"] == "https"
        with context.wrap_socket(proxy.connect(), server_hostname="localhost") as sock:
            sock.sendall(
                b"POST /tls HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer "
                + make_token().encode()
                + b"\r\nContent-Length: 2\r\n\r\n{}"
            )
            received = b""
            while b"first" not in received:
                received += sock.recv(1000)
        until(lambda: is_closed, "the upstream's end")
    assert is_closed == [True]


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A key and a self-signed certificate for localhost."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    key_path, certificate_path = directory / "key.pem", directory / "certificate.pem"
    key_path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_path, certificate_path
