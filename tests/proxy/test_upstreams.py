"""Several real upstreams behind a proxy: what becomes of requests when some end or are busy."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    Script,
    ScriptedUpstream,
    bearer,
    running_proxy,
    until,
    until_usable,
)


def write_upstreams(path: Path, *upstreams: ScriptedUpstream) -> None:
    path.write_text("upstreams:\n" + "".join(f"- {server.url}\n" for server in upstreams))


def ask(url: str, session_id: str | None = None) -> requests.Response:
    body = {"text": "hi"} | ({"session_id": session_id} if session_id else {})
    return requests.post(f"{url}/ask", json=body, headers=bearer(), timeout=DEADLINE_S)


def name_itself(server: ScriptedUpstream) -> None:
    server.scripts["/ask"] = lambda peer: peer.reply(b"%d" % server.port)


def test_one_of_three_killed_under_load_costs_only_its_own_streams(tmp_path: Path) -> None:
    servers = [ScriptedUpstream() for _ in range(3)]
    release, begun = threading.Event(), list[Peer]()

    def stream(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"first")
        begun.append(peer)
        release.wait(DEADLINE_S)
        peer.chunk(b"last")
        peer.end_stream()

    for server in servers:
        server.scripts["/ask"] = stream
    write_upstreams(tmp_path / "upstreams.yaml", *servers)
    victim, outcomes = servers[0], []

    def client(i: int) -> None:
        try:
            outcomes.append(ask(proxy.url, f"s{i}").text)
        except requests.RequestException:
            outcomes.append("broken")

    with running_proxy(
        tmp_path, "http://127.0.0.1:9", UPSTREAMS_FILE=str(tmp_path / "upstreams.yaml")
    ) as proxy:
        until_usable(proxy, len(servers))
        early = [threading.Thread(target=client, args=(i,)) for i in range(24)]
        for thread in early:
            thread.start()
        until(lambda: len(begun) == 24, "24 streams")
        num_lost = len(victim.requests)
        assert 0 < num_lost < 24
        victim.stop()
        late = [threading.Thread(target=client, args=(i,)) for i in range(24, 48)]
        for thread in late:
            thread.start()
        until(lambda: len(begun) == 48, "48 streams")
        release.set()
        for thread in early + late:
            thread.join(DEADLINE_S)
    assert Counter(outcomes) == {"firstlast": 48 - num_lost, "broken": num_lost}
    for server in servers[1:]:
        server.stop()


@pytest.mark.parametrize("status", ["503 Service Unavailable", "500 Internal Server Error"])
def test_only_an_answer_that_says_nothing_was_done_is_tried_elsewhere(
    tmp_path: Path, status: str
) -> None:
    busy, free = ScriptedUpstream(), ScriptedUpstream()
    busy.scripts["/ask"] = lambda peer: peer.reply(b"no", status)
    name_itself(free)
    write_upstreams(tmp_path / "upstreams.yaml", busy, free)
    with running_proxy(tmp_path, "x", UPSTREAMS_FILE=str(tmp_path / "upstreams.yaml")) as proxy:
        until_usable(proxy, 2)
        answers = {ask(proxy.url, f"s{i}").status_code for i in range(20)}
    assert busy.requests
    assert answers == ({200} if status.startswith("503") else {200, 500})
    busy.stop()
    free.stop()


def test_last_503_passes_whole_when_all_are_busy(tmp_path: Path) -> None:
    servers = [ScriptedUpstream() for _ in range(2)]
    for server in servers:
        server.scripts["/ask"] = lambda peer: peer.reply(b"full", "503 Busy", "Retry-After: 9")
    write_upstreams(tmp_path / "upstreams.yaml", *servers)
    with running_proxy(tmp_path, "x", UPSTREAMS_FILE=str(tmp_path / "upstreams.yaml")) as proxy:
        until_usable(proxy, 2)
        reply = ask(proxy.url)
    assert (reply.status_code, reply.text, reply.headers["Retry-After"]) == (503, "full", "9")
    for server in servers:
        assert len(server.requests) == 1
        server.stop()


def test_unready_upstream_gets_no_requests_until_it_is_ready(tmp_path: Path) -> None:
    loading, ready = ScriptedUpstream(), ScriptedUpstream()
    name_itself(loading)
    name_itself(ready)
    loading.scripts["/ready"] = lambda peer: peer.reply(b"{}", "503 Service Unavailable")
    write_upstreams(tmp_path / "upstreams.yaml", loading, ready)
    with running_proxy(tmp_path, "x", UPSTREAMS_FILE=str(tmp_path / "upstreams.yaml")) as proxy:
        usable = f'hearth_proxy_upstream_usable{{upstream="127.0.0.1:{loading.port}"}}'
        until(lambda: f"{usable} 0.0" in proxy.metric("/metrics"), "the check")
        assert {ask(proxy.url, f"s{i}").text for i in range(20)} == {str(ready.port)}
        loading.scripts["/ready"] = lambda peer: peer.reply(b"{}")
        until(lambda: f"{usable} 1.0" in proxy.metric("/metrics"), "the check")
        assert len({ask(proxy.url, f"s{i}").text for i in range(20)}) == 2
    loading.stop()
    ready.stop()


def test_request_to_a_server_that_stopped_answering_is_refused_at_once(tmp_path: Path) -> None:
    """By the proxy: the server would take the connection and let it wait."""
    frozen = ScriptedUpstream()
    with running_proxy(tmp_path, frozen.url) as proxy:
        assert ask(proxy.url).status_code == 200
        frozen.scripts["/ready"] = Peer.wait_until_closed_by_proxy
        frozen.scripts["/ask"] = frozen.scripts["/ready"]
        until(lambda: "is silent" in proxy.log(), "the first silent check")

        def is_refused() -> bool:
            try:
                reply = requests.post(f"{proxy.url}/ask", headers=bearer(), json={}, timeout=1)
            except requests.Timeout:
                return False
            assert reply.json()["error"]["code"] == "upstream_not_ready"
            return reply.status_code == 503 and "Retry-After" in reply.headers

        until(is_refused, "the second silent check")
        frozen.scripts["/ready"] = lambda peer: peer.reply(b"{}")
        frozen.scripts["/ask"] = lambda peer: peer.reply(b"thawed")
        until(lambda: ask(proxy.url).status_code == 200, "an answered check")
    frozen.stop()


def test_engine_without_a_ready_route_counts_as_ready(tmp_path: Path) -> None:
    engine = ScriptedUpstream()
    engine.scripts["/ready"] = lambda peer: peer.reply(b"", "404 Not Found")
    with running_proxy(tmp_path, engine.url) as proxy:
        until(lambda: engine.num_connections > 1, "two checks")
        assert requests.get(f"{proxy.url}/ready", timeout=DEADLINE_S).status_code == 200
    engine.stop()


def test_edited_file_is_taken_on_hangup_and_a_faulty_one_is_not(tmp_path: Path) -> None:
    first, second = ScriptedUpstream(), ScriptedUpstream()
    name_itself(first)
    name_itself(second)
    path = tmp_path / "upstreams.yaml"
    write_upstreams(path, first)
    # An interval beyond the test's deadline: only the signal can be what makes it look.
    with running_proxy(tmp_path, "x", UPSTREAMS_FILE=str(path), HEALTH_INTERVAL="30") as proxy:
        assert ask(proxy.url).text == str(first.port)
        write_upstreams(path, second)
        proxy.process.send_signal(signal.SIGHUP)
        until(lambda: ask(proxy.url).text == str(second.port), "the new upstream")
        path.write_text("upstreams: [")
        proxy.process.send_signal(signal.SIGHUP)
        until(lambda: "its last good value stays" in proxy.log(), "the complaint")
        assert ask(proxy.url).text == str(second.port)
    first.stop()
    second.stop()


def test_stream_runs_on_to_its_end_when_its_upstream_leaves_the_list(tmp_path: Path) -> None:
    leaving, staying = ScriptedUpstream(), ScriptedUpstream()
    may_end = threading.Event()

    def stream(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"first")
        may_end.wait(DEADLINE_S)
        peer.chunk(b"last")
        peer.end_stream()

    leaving.scripts["/ask"] = stream
    name_itself(staying)
    path = tmp_path / "upstreams.yaml"
    write_upstreams(path, leaving)
    with running_proxy(tmp_path, "x", UPSTREAMS_FILE=str(path)) as proxy:
        with proxy.begin("/ask") as sock:
            received = b""
            while b"first" not in received:
                received += sock.recv(1000)
            write_upstreams(path, staying)
            until(lambda: f"127.0.0.1:{staying.port}" in proxy.metric("/metrics"), "the new list")
            assert ask(proxy.url).text == str(staying.port)
            may_end.set()
            while not received.endswith(b"0\r\n\r\n"):
                received += sock.recv(1000)
        assert b"last" in received
    leaving.stop()
    staying.stop()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[ProxyProcess, list[ScriptedUpstream]]]:
    """A proxy with three upstreams that name themselves."""
    servers = [ScriptedUpstream() for _ in range(3)]
    for server in servers:
        server.default = lambda peer: peer.reply(b"%d" % peer.upstream.port)
    path = tmp_path / "upstreams.yaml"
    write_upstreams(path, *servers)
    with running_proxy(tmp_path, "x", UPSTREAMS_FILE=str(path)) as proxy:
        until_usable(proxy, 3)
        yield proxy, servers
    for server in servers:
        with suppress(OSError):  # a test may have stopped it
            server.stop()


Three = tuple[ProxyProcess, list[ScriptedUpstream]]


def complete(proxy: ProxyProcess, prompt: str) -> requests.Response:
    url = f"{proxy.url}/v1/completions"
    return requests.post(url, json={"prompt": prompt}, headers=bearer(), timeout=DEADLINE_S)


def test_prompts_of_an_upstream_that_dies_before_it_answers_are_answered_by_others(
    three: Three,
) -> None:
    proxy, (victim, *others) = three
    dies = threading.Event()
    victim.scripts["/v1/completions"] = lambda peer: dies.wait(DEADLINE_S)
    count = 40  # so that some are for the victim
    with ThreadPoolExecutor(count) as clients:
        answers = [clients.submit(complete, proxy, f"prompt {i}") for i in range(count)]
        until(lambda: sum(len(each.requests) for each in (victim, *others)) == count, "prompts")
        assert victim.requests
        victim.stop()
        dies.set()
        found = Counter(answer.result().text for answer in answers)
    assert set(found) <= {str(other.port) for other in others}
    assert found.total() == count
    assert {line["status"] for line in proxy.audit()} == {200}


@pytest.mark.parametrize("end", [Peer.close, Peer.reset])
def test_prompt_that_ends_whoever_takes_it_is_given_to_two_and_no_more(
    three: Three, end: Script
) -> None:
    proxy, servers = three
    for server in servers:
        server.scripts["/v1/completions"] = end
    reply = complete(proxy, "poison")
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_broken")
    assert sum(len(server.requests) for server in servers) == 2


@pytest.mark.parametrize(
    ("method", "begun", "num_sent"),
    [("GET", b"", 2), ("POST", b"", 1), ("PUT", b"", 1), ("GET", b"HTTP/1.1 2", 1)],
)
def test_what_may_have_changed_something_or_begun_an_answer_is_sent_once(
    three: Three, method: str, begun: bytes, num_sent: int
) -> None:
    proxy, servers = three

    def begin(peer: Peer) -> None:
        peer.send(begun)
        peer.close()

    for server in servers:
        server.scripts["/weights"] = begin
    reply = requests.request(method, f"{proxy.url}/weights", headers=bearer(), timeout=DEADLINE_S)
    assert reply.status_code == 502
    assert sum(len(server.requests) for server in servers) == num_sent
