"""The choice between upstreams: affinity, load, ejection; the file; and three real ones."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from proxy.clients.inbound import RoutingHints
from proxy.errors import UpstreamNotReady, UpstreamUnreachable
from proxy.upstreams.balancer import (
    FIRST_COOLDOWN_S,
    Balancer,
    Health,
    UpstreamSpec,
    parse_upstreams,
)
from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    Script,
    ScriptedUpstream,
    bearer,
    running_proxy,
    until,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_balancer(clock: Clock, *specs: UpstreamSpec) -> Balancer:
    return Balancer(specs or [UpstreamSpec(f"http://u{i}:80") for i in range(3)], 1.0, clock)


def serve(balancer: Balancer, key: str | None = None, model: str | None = None) -> str:
    """One request that starts and ends at once."""
    upstream = balancer.choose(RoutingHints(model, key))
    balancer.finish(upstream)
    return upstream.name


def test_key_of_half_a_surrogate_pair_is_a_key(clock: Clock) -> None:
    assert serve(make_balancer(clock), "session:\ud800").startswith("u")


def test_requests_without_affinity_spread_by_load_and_weight(clock: Clock) -> None:
    specs = [UpstreamSpec("http://a:1", weight=3), UpstreamSpec("http://b:1", weight=1)]
    balancer = make_balancer(clock, *specs)
    chosen = Counter(balancer.choose(RoutingHints()).name for _ in range(80))
    assert chosen == {"a:1": 60, "b:1": 20}


@given(key=st.text(max_size=40))
def test_a_session_always_meets_the_same_upstream(key: str) -> None:
    balancer = make_balancer(Clock())
    assert len({serve(balancer, key) for _ in range(5)}) == 1


@given(keys=st.sets(st.text(min_size=1, max_size=9), min_size=5, max_size=30))
def test_only_the_sessions_of_a_lost_upstream_move(keys: set[str]) -> None:
    balancer = make_balancer(Clock())
    before = {key: serve(balancer, key) for key in keys}
    lost = balancer.upstreams[1]
    balancer.report_health(lost, Health.NOT_READY)
    for key, name in before.items():
        assert (serve(balancer, key) == name) == (name != lost.name)


def test_sessions_spread_in_proportion_to_weight(clock: Clock) -> None:
    specs = [UpstreamSpec("http://a:1", weight=3), UpstreamSpec("http://b:1", weight=1)]
    balancer = make_balancer(clock, *specs)
    chosen = Counter(serve(balancer, f"session:{i}") for i in range(4000))
    assert 0.72 < chosen["a:1"] / 4000 < 0.78


def test_a_hot_session_overflows_to_the_least_loaded(clock: Clock) -> None:
    balancer = make_balancer(clock)
    chosen = Counter(balancer.choose(RoutingHints(None, "hot")).name for _ in range(60))
    assert len(chosen) == 3
    assert max(chosen.values()) <= 1.25 * 20 + 3


def test_refused_connection_ejects_until_its_cooldown_is_over(clock: Clock) -> None:
    balancer = make_balancer(clock)
    ejected = balancer.upstreams[0]
    balancer.report_failure(ejected, is_unreachable=True)
    assert ejected.name not in {serve(balancer, str(i)) for i in range(50)}
    clock.now_s += FIRST_COOLDOWN_S
    assert ejected.name in {serve(balancer, str(i)) for i in range(50)}


def test_cooldown_doubles_with_each_ejection_and_success_resets_it(clock: Clock) -> None:
    balancer = make_balancer(clock)
    upstream = balancer.upstreams[0]
    for expected_s in (2, 4, 8, 16, 32, 60, 60):
        balancer.report_failure(upstream, is_unreachable=True)
        assert upstream.ejected_until_s - clock.now_s == expected_s
    balancer.report_success(upstream)
    balancer.report_failure(upstream, is_unreachable=True)
    assert upstream.ejected_until_s - clock.now_s == 2


def test_broken_answers_eject_only_when_three_follow_each_other(clock: Clock) -> None:
    balancer = make_balancer(clock)
    upstream = balancer.upstreams[0]
    for _ in range(5):
        balancer.report_failure(upstream)
        balancer.report_failure(upstream)
        balancer.report_success(upstream)
    assert upstream.ejected_until_s == 0
    for _ in range(3):
        balancer.report_failure(upstream)
    assert upstream.ejected_until_s > clock.now_s


def test_good_health_check_does_not_excuse_broken_answers(clock: Clock) -> None:
    balancer = make_balancer(clock, UpstreamSpec("http://only:1"))
    for _ in range(3):
        balancer.report_failure(balancer.upstreams[0])
    balancer.report_health(balancer.upstreams[0], Health.READY)
    assert not balancer.is_ready()
    clock.now_s += FIRST_COOLDOWN_S
    assert balancer.is_ready()


def test_good_health_check_ends_an_ejection(clock: Clock) -> None:
    balancer = make_balancer(clock, UpstreamSpec("http://only:1"))
    balancer.report_failure(balancer.upstreams[0], is_unreachable=True)
    assert not balancer.is_ready()
    balancer.report_health(balancer.upstreams[0], Health.READY)
    assert balancer.is_ready()


def test_when_all_are_ejected_one_is_tried_all_the_same(clock: Clock) -> None:
    balancer = make_balancer(clock)
    for upstream in balancer.upstreams:
        balancer.report_failure(upstream, is_unreachable=True)
    assert serve(balancer).startswith("u")


def test_none_that_is_not_ready_is_tried(clock: Clock) -> None:
    balancer = make_balancer(clock)
    for upstream in balancer.upstreams:
        balancer.report_health(upstream, Health.NOT_READY)
    with pytest.raises(UpstreamNotReady):
        serve(balancer)
    balancer.report_health(balancer.upstreams[0], Health.READY)
    assert serve(balancer) == balancer.upstreams[0].name


def test_none_that_is_silent_twice_in_a_row_is_tried(clock: Clock) -> None:
    balancer = make_balancer(clock, UpstreamSpec("http://only:1"))
    (only,) = balancer.upstreams
    balancer.report_health(only, Health.SILENT)
    assert serve(balancer) == "only:1", "that may have been a moment's load"
    balancer.report_health(only, Health.SILENT)
    with pytest.raises(UpstreamNotReady):
        serve(balancer)
    balancer.report_health(only, Health.READY)
    assert serve(balancer) == "only:1"


def test_models_restrict_the_choice(clock: Clock) -> None:
    specs = [UpstreamSpec("http://a:1", models=("small",)), UpstreamSpec("http://b:1")]
    balancer = make_balancer(clock, *specs)
    assert {serve(balancer, str(i), "large") for i in range(20)} == {"b:1"}
    only = make_balancer(clock, specs[0])
    with pytest.raises(UpstreamUnreachable):
        serve(only, None, "large")


def test_new_list_keeps_the_state_of_those_that_stay(clock: Clock) -> None:
    balancer = make_balancer(clock)
    stays = balancer.choose(RoutingHints(None, "x"))
    balancer.replace([stays.spec, UpstreamSpec("http://new:1")])
    assert balancer.upstreams[0] is stays
    assert balancer.upstreams[0].in_flight == 1


def test_file_with_urls_and_mappings_is_read() -> None:
    text = """
    upstreams:
      - http://a:7000
      - {url: "https://b/base", weight: 2, health_path: /health, models: [x]}
    """
    first, second = parse_upstreams(text)
    assert first == UpstreamSpec("http://a:7000")
    assert second == UpstreamSpec("https://b/base", 2.0, "/health", ("x",))
    assert (second.netloc, second.base_path) == ("b", "/base")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a list"),
        ("upstreams:", "expected a list"),
        ("upstreams: [", "not YAML"),
        ("upstreams: [ftp://a]", "expected http"),
        ("upstreams: [7]", "no url"),
        ("upstreams: [http://a, http://a]", "twice"),
        ("upstreams: [{url: http://a, weight: 0}]", "above 0"),
        ("upstreams: [{url: http://a, weight: many}]", "must be a number"),
        ("upstreams: [{url: http://a, wieght: 1}]", "unknown keys"),
        ("upstreams: [{url: http://a, health_path: x}]", "must begin with /"),
        ("upstreams: [{url: http://a, health_path: '/x HTTP/1.1'}]", "neither spaces"),
        ("upstreams: [{url: http://a, models: x}]", "must be a list"),
    ],
)
def test_faulty_file_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_upstreams(text)


def test_with_no_upstream_listed_there_is_something_to_wait_for() -> None:
    balancer = Balancer(parse_upstreams("upstreams: []"), connect_timeout_s=1.0)
    assert not balancer.is_ready()
    with pytest.raises(UpstreamNotReady):
        balancer.choose(RoutingHints())


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
