"""The processes behind the port: several of them, their signals and deaths, and TLS."""

import re
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import requests

from tests.ports import neighbouring_ports
from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    post_bytes,
    running_proxy,
    slow_reader,
    until,
)
from tests.proxy.test_life_cycle import make_certificate, read_all


@pytest.fixture
def pair(
    upstream: ScriptedUpstream, clean_redis_url: str, tmp_path: Path
) -> Iterator[ProxyProcess]:
    """Two processes behind one port."""
    (tmp_path / "policy.yaml").write_text("teams:\n  narrow: {requests_per_minute: 25}\n")
    with running_proxy(
        tmp_path,
        upstream.url,
        metrics_port=neighbouring_ports(2),
        PROXY_PROCESSES="2",
        DRAIN_TIMEOUT=str(DEADLINE_S),
        REDIS_URL=clean_redis_url,
        POLICY_FILE=str(tmp_path / "policy.yaml"),
    ) as proxy:
        until(lambda: len(up_metrics(proxy)) == 2, "both metrics ports")
        yield proxy


def up_metrics(proxy: ProxyProcess) -> list[str]:
    """What each process says."""
    texts = []
    for port in (proxy.metrics_port, proxy.metrics_port + 1):
        with suppress(requests.ConnectionError):
            texts.append(requests.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).text)
    return texts


def num_counted(proxy: ProxyProcess, team_id: str) -> float:
    """Requests of a team, in all processes."""
    pattern = rf"hearth_proxy_requests_total{{[^}}]*{team_id}[^}}]*}} (\S+)"
    return sum(float(n) for text in up_metrics(proxy) for n in re.findall(pattern, text))


def workers(proxy: ProxyProcess) -> set[int]:
    return {child.pid for child in psutil.Process(proxy.process.pid).children()}


def test_several_processes_share_limits_and_survive_each_other(
    pair: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    statuses = []
    for _ in range(40):
        reply = requests.get(pair.url + "/x", headers=bearer(team_id="narrow"), timeout=DEADLINE_S)
        statuses.append(reply.status_code)
    assert statuses == [200] * 25 + [429] * 15
    until(lambda: num_counted(pair, "narrow") == 40, "both have counted theirs")
    before = workers(pair)
    killed = min(before)
    psutil.Process(killed).kill()
    until(lambda: len(workers(pair) - {killed}) == 2, "another process")
    until(lambda: len(up_metrics(pair)) == 2, "its metrics")
    for _ in range(10):
        assert requests.get(pair.url + "/x", headers=bearer(), timeout=DEADLINE_S).ok
    may_end = threading.Event()

    def held(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"first")
        may_end.wait(DEADLINE_S)
        peer.end_stream()

    upstream.scripts["/held"] = held
    streams = [pair.begin("/held") for _ in range(6)]
    for sock in streams:
        assert b"200 OK" in sock.recv(1000)
    pair.process.send_signal(signal.SIGTERM)
    until(lambda: "draining" in safe_ready(pair), "the drain")
    may_end.set()
    for sock in streams:
        with sock:
            assert read_all(sock).endswith(b"0\r\n\r\n")
    assert pair.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCHLD"])
def test_signals_that_mean_nothing_here_end_no_process(
    proxy: ProxyProcess, upstream: ScriptedUpstream, name: str
) -> None:
    """logrotate sends SIGUSR1 to whatever gunicorn runs."""
    before = workers(proxy)
    for pid in before:
        psutil.Process(pid).send_signal(getattr(signal, name))
    for _ in range(3):  # whoever is to end at a signal has answered no more than one after it
        assert requests.get(proxy.url + "/x", headers=bearer(), timeout=DEADLINE_S).ok
    assert workers(proxy) == before
    assert "Traceback" not in proxy.log()


def test_end_of_an_answer_is_sent_before_the_process_ends(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """What kernels hold on the way varies: of these sizes one has its end in the proxy's hands."""
    sizes = range(100_000, 450_000, 50_000)

    def begin(size: int) -> socket.socket:
        upstream.scripts[f"/{size}"] = lambda peer: peer.reply(b"x" * size)
        sock = slow_reader(proxy)
        sock.sendall(post_bytes(f"/{size}"))
        return sock

    patient = partial(running_proxy, DRAIN_TIMEOUT=str(DEADLINE_S))
    with patient(tmp_path, upstream.url) as proxy, ExitStack() as stack:
        readers = [stack.enter_context(begin(size)) for size in sizes]
        until(proxy.audit, "all of one has come from the upstream, and nothing was read")
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in safe_ready(proxy), "the drain")
        answers = stack.enter_context(ThreadPoolExecutor(len(sizes))).map(read_all, readers)
        assert all(len(answer) > size for size, answer in zip(sizes, answers, strict=True))
        assert proxy.process.wait(DEADLINE_S) == 0


def safe_ready(proxy: ProxyProcess) -> str:
    try:
        return proxy.metric("/ready")
    except requests.ConnectionError:
        return "draining"


def test_tls_clients_are_held_to_the_same(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Silent ones are closed, garbage is no failure, and slow readers hold their upstream back."""
    key, certificate = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    sent: list[int] = []

    def flood(peer: Peer) -> None:
        peer.begin_stream()
        while len(sent) < 10_000:
            peer.chunk(b"x" * 65536)
            sent.append(65536)

    upstream.scripts["/flood"] = flood
    tls = ("--certfile", str(certificate), "--keyfile", str(key))
    with running_proxy(tmp_path, upstream.url, *tls, HEAD_TIMEOUT="2", CLIENT_TIMEOUT="1") as proxy:
        with proxy.connect() as silent, proxy.connect() as garbage, proxy.connect() as half:
            garbage.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            half.sendall(b"\x16\x03\x01\x02\x00\x01")
            for sock in (silent, garbage, half):
                with suppress(ConnectionError):
                    while sock.recv(1000):
                        pass
        with (
            slow_reader(proxy) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            sock.sendall(post_bytes("/flood"))
            assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
            assert proxy.audit_of("/flood")["outcome"] == "client_stalled"
        assert sum(sent) < 100 * 1024 * 1024
        until(lambda: "\nhearth_proxy_connections 0.0" in proxy.metric("/metrics"), "their end")
        assert "Traceback" not in proxy.log()
