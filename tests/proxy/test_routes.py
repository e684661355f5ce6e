"""Shares of servers in a model's requests, and who answers when a server is full or down."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy.clients.inbound import RoutingHints
from proxy.errors import AllRowsBusy, UpstreamUnreachable
from proxy.upstreams.balancer import Balancer, Upstream, UpstreamHealth
from proxy.upstreams.routes import Routes, parse_routes
from proxy.upstreams.specs import UpstreamSpec
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

ROUTES = """
routes:
  chat:
    - {server: stable, weight: 95}
    - {server: canary, weight: 5}
    - {server: spare, priority: 1}
"""
PATH = "/v1/completions"


def make_balancer(routes: Routes | None = None) -> Balancer:
    """A server of each name, of two rows each, and one that no route names."""
    specs = [
        UpstreamSpec(f"http://{name}:1", rows=2, server=name)
        for name in ("stable", "canary", "spare", "other")
    ]
    routes = routes or parse_routes(ROUTES)
    return Balancer(specs, 1.0, routes=lambda: routes)


def choose(balancer: Balancer, key: str = "", model: str = "chat") -> Upstream:
    hints = RoutingHints(model, takes_row=True).routed("team", key)
    return balancer.choose(hints)


def serve(balancer: Balancer, key: str, model: str = "chat") -> str:
    upstream = choose(balancer, key, model)
    balancer.finish(upstream)
    return upstream.spec.server


def report(balancer: Balancer, server: str, health: UpstreamHealth) -> None:
    for upstream in balancer.upstreams:
        if upstream.spec.server == server:
            balancer.report_health(upstream, health)


def test_servers_have_their_shares_of_the_requests() -> None:
    balancer = make_balancer()
    counts = Counter(serve(balancer, f"request-{i}") for i in range(10_000))
    assert set(counts) == {"stable", "canary"}
    assert 400 < counts["canary"] < 600


@given(team=st.text(max_size=9), session_id=st.text(max_size=9))
def test_a_teams_session_stays_with_its_server(team: str, session_id: str) -> None:
    balancer = make_balancer()
    hints = RoutingHints("chat", f"session:{session_id}")
    met = set()
    for i in range(5):
        upstream = balancer.choose(hints.routed(team, f"request-{i}"))
        balancer.finish(upstream)
        met.add(upstream.spec.server)
    assert len(met) == 1


def test_one_prompt_does_not_send_all_requests_to_one_server() -> None:
    hints = RoutingHints("chat", "prompt:You are helpful.")
    keys = {hints.routed("team", f"request-{i}").route_key for i in range(9)}
    assert len(keys) == 9


def test_share_of_a_server_that_is_down_goes_to_its_peers_first() -> None:
    balancer = make_balancer()
    report(balancer, "stable", UpstreamHealth.NOT_READY)
    assert {serve(balancer, str(i)) for i in range(50)} == {"canary"}
    report(balancer, "canary", UpstreamHealth.NOT_READY)
    assert {serve(balancer, str(i)) for i in range(50)} == {"spare"}
    report(balancer, "stable", UpstreamHealth.READY)
    assert {serve(balancer, str(i)) for i in range(50)} == {"stable"}


def test_full_server_hands_on_to_a_fallback_and_not_to_a_canary() -> None:
    balancer = make_balancer()
    key = next(str(i) for i in range(99) if serve(balancer, str(i)) == "stable")
    taken = [choose(balancer, key).spec.server for _ in range(6)]
    assert taken == ["stable"] * 3 + ["spare"] * 3
    with pytest.raises(AllRowsBusy):
        choose(balancer, key)


def test_route_is_for_its_servers_alone() -> None:
    balancer = make_balancer(parse_routes("routes: {chat: [{server: nobody}]}"))
    with pytest.raises(UpstreamUnreachable):
        choose(balancer)
    assert serve(balancer, "", "stable"), "a server's name is no model"


@pytest.mark.parametrize("model", ["stable", "x" * 200_000, "\ud800", ""])
def test_model_without_a_route_is_for_any_server(model: str) -> None:
    balancer = make_balancer()
    assert len({choose(balancer, "", model).spec.server for _ in range(8)}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "no plain YAML"),
        ("- x", "the file is a list; give an object; known keys: routes"),
        ("routes: [x]", "routes: is a list; give an object"),
        ("routes: {m: []}", "routes.m: has 0 entries; give 1 or more"),
        ("routes: {m: [{}]}", r"routes.m\[0\].server: is missing; give it"),
        ("routes: {m: [{server: ''}]}", r"routes.m\[0\].server: is empty"),
        ("routes: {m: [{server: a, weight: 0}]}", r"routes.m\[0\].weight: is 0; give more than 0"),
        (
            "routes: {m: [{server: a, weight: .inf}]}",
            r"routes.m\[0\].weight: is Infinity; give 10{6} or",
        ),
        ("routes: {m: [{server: a, weight: .nan}]}", r"routes.m\[0\].weight: is NaN"),
        (
            "routes: {m: [{server: a, priority: 10}]}",
            r"routes.m\[0\].priority: is 10; give 9",
        ),
        (
            "routes: {m: [{server: a, share: 1}]}",
            r"routes.m\[0\].share: is not known",
        ),
        ("routes: {m: [{server: a}, {server: a}]}", "'a' is there 2 times with priority 0; keep"),
    ],
)
def test_faulty_file_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_routes(text)


def test_server_may_be_its_own_canarys_fallback() -> None:
    routes = parse_routes("routes: {m: [{server: a}, {server: a, priority: 1}]}")
    assert len(routes.of("m")) == 2
    assert parse_routes("") == Routes()


Fleet = Mapping[str, ScriptedUpstream]


@contextmanager
def fleet(
    folder: Path, routes: str, max_bytes: int = 4 * 1024 * 1024, **scripts: Script
) -> Iterator[tuple[ProxyProcess, Fleet]]:
    """A proxy with a replica for each script, of the server of its name before any digits."""
    replicas = {name: ScriptedUpstream() for name in scripts}
    for name, script in scripts.items():
        replicas[name].scripts[PATH] = script
    entries = [
        {"url": each.url, "server": name.rstrip("0123456789"), "models": ["chat"]}
        | ({"cents_per_hour": 3600} if name == "spare" else {})
        for name, each in replicas.items()
    ]
    (folder / "upstreams.yaml").write_text(yaml.safe_dump({"upstreams": entries}))
    (folder / "routes.yaml").write_text(routes)
    upstreams, file = str(folder / "upstreams.yaml"), str(folder / "routes.yaml")
    try:
        with running_proxy(
            folder,
            "x",
            UPSTREAMS_FILE=upstreams,
            ROUTES_FILE=file,
            MAX_CONTENT_LENGTH=str(max_bytes),
        ) as proxy:
            yield proxy, replicas
    finally:
        for replica in replicas.values():
            with suppress(OSError):  # a test may have stopped it
                replica.stop()


def ask(proxy: ProxyProcess, **body: object) -> requests.Response:
    body = {"model": "chat", "prompt": "x"} | body
    return requests.post(proxy.url + PATH, json=body, headers=bearer(), timeout=DEADLINE_S)


def answer(peer: Peer) -> None:
    peer.reply(b"answered")


def busy(peer: Peer) -> None:
    peer.reply(b"full", "503 Service Unavailable")


FIRST_AND_SPARE = "routes: {chat: [{server: first}, {server: spare, priority: 1}]}"


def test_server_that_says_it_is_full_is_left_for_the_fallback(tmp_path: Path) -> None:
    with fleet(tmp_path, FIRST_AND_SPARE, first=busy, spare=answer) as (proxy, replicas):
        assert ask(proxy).text == "answered"
        assert proxy.audit_of(PATH)["server"] == "spare"
        assert len(replicas["first"].seen(PATH)) == 1
        told = 'hearth_proxy_server_requests_total{server="spare",status="200"} 1.0'
        assert told in proxy.metric("/metrics")
        line: dict[str, Any] = proxy.audit_of(PATH)
        assert 0 < line["replica_cents"] <= line["total_ms"] / 1000, "alone, at a cent a second"
        assert "hearth_proxy_replica_cents_total{team_id=" in proxy.metric("/metrics")


def test_server_that_is_down_is_left_for_the_fallback(tmp_path: Path) -> None:
    with fleet(tmp_path, FIRST_AND_SPARE, first=answer, spare=answer) as (proxy, replicas):
        assert ask(proxy).text == "answered"
        assert not replicas["spare"].seen(PATH)
        replicas["first"].stop()
        assert ask(proxy).text == "answered"
        assert len(replicas["spare"].seen(PATH)) == 1


def begun(peer: Peer) -> None:
    peer.begin_stream("text/event-stream")
    peer.chunk(b'data: {"choices": [{"text": "a"}]}\n\n')
    peer.reset()


@pytest.mark.parametrize(
    ("script", "num_asked"),
    [
        (Peer.close, 2),  # as before, one more replica of the same server
        (Peer.reset, 2),
        (begun, 1),
        (lambda peer: peer.reply(b"{}", "500 Internal Server Error"), 1),
        (lambda peer: (peer.send(b"HTTP/1.1 2"), peer.close()), 1),
    ],
)
def test_what_may_have_started_is_not_given_to_another_server(
    tmp_path: Path, script: Callable[[Peer], object], num_asked: int
) -> None:
    with fleet(tmp_path, FIRST_AND_SPARE, first1=script, first2=script, spare=answer) as (
        proxy,
        replicas,
    ):
        with suppress(requests.exceptions.ChunkedEncodingError):
            assert ask(proxy, stream=True).status_code >= 500 or script is begun
        asked = len(replicas["first1"].seen(PATH)) + len(replicas["first2"].seen(PATH))
        assert asked == num_asked
        assert not replicas["spare"].seen(PATH)


def test_long_conversation_has_its_route_and_goes_on_where_a_server_is_full(tmp_path: Path) -> None:
    """Its model comes last, as OpenAI's SDKs send it."""
    with fleet(tmp_path, FIRST_AND_SPARE, first=busy, spare=answer) as (proxy, replicas):
        long = {"prompt": "x" * 3_000_000, "model": "chat"}
        asked = json.dumps(long).encode()
        for data in (asked, iter([asked[:100], asked[100:]])):
            headers = bearer() | {"Content-Type": "application/json"}
            reply = requests.post(proxy.url + PATH, data, headers=headers, timeout=DEADLINE_S)
            assert (reply.status_code, reply.text) == (200, "answered")
        assert [json.loads(each.body) for each in replicas["spare"].seen(PATH)] == [long, long]


def test_body_too_large_to_keep_is_sent_once(tmp_path: Path) -> None:
    """It names no model that can be read, so that it has no route, nor a server of any model."""
    many = 5 * 1024 * 1024
    with fleet(tmp_path, FIRST_AND_SPARE, many + 100, first=busy) as (
        proxy,
        replicas,
    ):
        assert ask(proxy, pad="x" * many).status_code == 502
        assert not replicas["first"].seen(PATH)


def test_edited_routes_are_taken_without_a_restart(tmp_path: Path) -> None:
    with fleet(tmp_path, FIRST_AND_SPARE, first=answer, spare=answer) as (proxy, replicas):
        assert ask(proxy).text == "answered"
        (tmp_path / "routes.yaml").write_text("routes: {chat: [{server: spare}]}")
        until(lambda: ask(proxy) and replicas["spare"].seen(PATH), "the new route")
        (tmp_path / "routes.yaml").write_text("routes: {chat: []}")
        until(lambda: "its last good value stays" in proxy.log(), "the complaint")
        num_before = len(replicas["spare"].seen(PATH))
        assert ask(proxy).text == "answered"
        assert len(replicas["spare"].seen(PATH)) == num_before + 1


def test_session_of_a_client_stays_while_others_are_shared(tmp_path: Path) -> None:
    even = "routes: {chat: [{server: first}, {server: spare}]}"
    with fleet(tmp_path, even, first=answer, spare=answer) as (proxy, replicas):
        for _ in range(6):
            ask(proxy, session_id="mine")
        counts = [len(replica.seen(PATH)) for replica in replicas.values()]
        assert sorted(counts) == [0, 6]
        for i in range(40):
            ask(proxy, session_id=f"s{i}")
        assert all(len(replica.seen(PATH)) > 6 for replica in replicas.values())
