"""Limits per team, enforced by a real proxy."""

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    make_token,
    running_proxy,
    until,
)

POLICY = """
defaults: {}
teams:
  raw: {tokens_per_minute: 10}
  hasty: {tokens_per_minute: 10}
  minute: {requests_per_minute: 2}
  tokens: {tokens_per_minute: 10}
  daily: {tokens_per_day: 10}
  costly-1: {cost_per_day: 0.0001}
  costly-2: {cost_per_day: 0.0001}
  costly-3: {cost_per_day: 0.0001}
  narrow: {max_concurrent: 1}
  choosy: {models: [small]}
currency: EUR
prices:
  small: {prompt_per_million: 0.5, completion_per_million: 2}
  "*": {prompt_per_million: 0, completion_per_million: 100}
"""


compressed = partial(gzip.compress, mtime=0)  # workers of a test run collect the same
SMALL, LARGE = b'{"model": "small", "prompt": "x"}', b'{"model": "large", "prompt": "x"}'


@pytest.fixture(scope="module")
def limited(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    directory: Path = tmp_path_factory.mktemp("limited")
    (directory / "policy.yaml").write_text(POLICY)
    with running_proxy(
        directory, upstream.url, POLICY_FILE=str(directory / "policy.yaml")
    ) as process:
        yield process


def ask(
    proxy: ProxyProcess, team: str, path: str = "/v1/completions", **body: object
) -> requests.Response:
    return requests.post(
        proxy.url + path,
        json={"prompt": "x"} | body,
        headers=bearer(team_id=team),
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (compressed(SMALL), "gzip", 200),
        (compressed(SMALL), "X-Gzip", 200),
        (SMALL, "identity", 200),
        (compressed(LARGE), "gzip", 403),
        (compressed(SMALL) + compressed(LARGE), "gzip", 403),
        (compressed(SMALL + b" " * 2**20), "gzip", 403),  # more than is read here
        (compressed(SMALL)[:-4], "gzip", 403),
        (compressed(compressed(SMALL)), "gzip, gzip", 403),
        (zlib.compress(SMALL), "deflate", 403),
        (SMALL, "br", 403),  # what another server would read in it is not known
        (SMALL, "gzip", 403),
    ],
)
def test_no_encoding_hides_a_model_from_the_policy(
    limited: ProxyProcess, upstream: ScriptedUpstream, data: bytes, encoding: str, status: int
) -> None:
    upstream.scripts["/v1/encoded"] = lambda peer: peer.reply(b"{}")
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    reply = requests.post(
        limited.url + "/v1/encoded",
        data=data,
        headers=bearer(team_id="choosy") | headers,
        timeout=DEADLINE_S,
    )
    assert reply.status_code == status


def test_429_tells_when_to_come_back(limited: ProxyProcess) -> None:
    assert [ask(limited, "minute").status_code for _ in range(3)] == [200, 200, 429]
    reply = ask(limited, "minute")
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert reply.json()["status_code"] == 429
    assert 1 <= int(reply.headers["Retry-After"]) <= 60
    assert reply.headers["X-RateLimit-Remaining-Requests"] == "0"
    assert ask(limited, "unlimited").status_code == 200


@pytest.mark.parametrize("kind", ["json", "events"])
def test_tokens_are_counted_from_the_answers_usage(
    limited: ProxyProcess, upstream: ScriptedUpstream, kind: str
) -> None:
    usage = b'{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 7}}'

    def script(peer: Peer) -> None:
        if kind == "json":
            peer.reply(usage, "200 OK", "Content-Type: application/json")
            return
        peer.begin_stream("text/event-stream")
        peer.chunk(b'data: {"choices": [{"text": "\\"completion_tokens\\": 9000"}]}\n\n')
        peer.chunk(b"data: " + usage + b"\n\n")
        peer.chunk(b"data: [DONE]\n\n")
        peer.end_stream()

    upstream.scripts[f"/v1/{kind}"] = script
    team = "tokens" if kind == "json" else "unlimited"
    assert ask(limited, team, f"/v1/{kind}").status_code == 200
    line = limited.audit_of(f"/v1/{kind}")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (4, 7)
    assert line["tokens_source"] == "usage"
    if kind == "json":
        assert ask(limited, "tokens").status_code == 429


def test_spent_budget_of_a_day_is_refused_until_the_day_ends(
    limited: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    usage = b'{"usage": {"prompt_tokens": 4, "completion_tokens": 7}}'
    json_type = "Content-Type: application/json"
    upstream.scripts["/v1/daily"] = lambda peer: peer.reply(usage, "200 OK", json_type)
    assert ask(limited, "daily", "/v1/daily").headers["X-RateLimit-Limit-Tokens-Day"] == "10"
    reply = ask(limited, "daily", "/v1/daily")
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "budget_exceeded")
    assert 1 <= int(reply.headers["Retry-After"]) <= 86_400


def test_cost_is_in_the_audit_line_and_in_the_metrics(
    limited: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    said = {"prompt_tokens": 4, "completion_tokens": 7}
    usage = json.dumps({"usage": said | {"prompt_tokens_details": {"cached_tokens": 3}}}).encode()
    json_type = "Content-Type: application/json"
    upstream.scripts["/v1/priced"] = lambda peer: peer.reply(usage, "200 OK", json_type)
    ask(limited, "priced", "/v1/priced", model="small")
    line = limited.audit_with(route="/v1/priced", model="small")
    assert (line["cost"], line["currency"], line["tokens_source"]) == (1.6e-05, "EUR", "usage")
    metrics = limited.metric("/metrics")
    assert 'hearth_proxy_cost_total{currency="EUR",team_id="priced"} 1.6e-05' in metrics
    assert line["cached_tokens"] == 3
    assert 'hearth_proxy_tokens_total{kind="cached",team_id="priced"} 3.0' in metrics


@pytest.mark.parametrize(
    ("team", "body"),
    [
        ("costly-1", {}),
        ("costly-2", {"model": "x" * 100_000}),
        ("costly-3", {"model": "small", "pad": [[]] * 450_000}),
    ],
)
def test_budget_of_cost_has_no_way_around_by_a_name(
    limited: ProxyProcess, upstream: ScriptedUpstream, team: str, body: dict[str, object]
) -> None:
    usage = b'{"usage": {"prompt_tokens": 4, "completion_tokens": 7}}'
    json_type = "Content-Type: application/json"
    upstream.scripts["/v1/costly"] = lambda peer: peer.reply(usage, "200 OK", json_type)
    assert ask(limited, team, "/v1/costly", **body).status_code == 200
    reply = ask(limited, team, "/v1/costly", **body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "budget_exceeded")
    assert reply.headers["X-RateLimit-Remaining-Cost-Day"] == "0"


def test_cost_of_a_stream_that_dies_is_estimated(
    limited: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    def script(peer: Peer) -> None:
        peer.begin_stream("text/event-stream")
        peer.chunk(b'data: {"choices": [{"text": "four"}]}\n\n')
        peer.reset()

    upstream.scripts["/v1/completions"] = script
    with pytest.raises(requests.RequestException):
        ask(limited, "broken", model="small")
    line = limited.audit_with(team_id="broken")
    del upstream.scripts["/v1/completions"]
    assert (line["outcome"], line["tokens_source"]) == ("upstream_broke", "estimated")
    num_prompt_bytes = len('{"prompt": "x", "model": "small"}')
    assert (line["prompt_tokens"], line["completion_tokens"]) == (num_prompt_bytes // 4, 1)
    assert line["cost"] == (num_prompt_bytes // 4 * 0.5 + 2) / 10**6


def test_raw_text_stream_is_counted_by_its_pieces(
    limited: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    def script(peer: Peer) -> None:
        peer.begin_stream()
        for _ in range(6):
            peer.chunk(b"tok ")
        peer.end_stream()

    upstream.scripts["/inference/m"] = script
    ask(limited, "unlimited", "/inference/m")
    line = limited.audit_of("/inference/m")
    assert (line["completion_tokens"], line["tokens_source"]) == (6, "estimated")


def test_prompt_of_a_raw_text_stream_is_charged_as_the_server_counted_it(
    limited: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\nX-Prompt-Tokens: 9\r\nConnection: close\r\n\r\ntok ")
        peer.close()

    upstream.scripts["/inference/prompted"] = script
    assert ask(limited, "raw", "/inference/prompted").headers["X-Prompt-Tokens"] == "9"
    line = limited.audit_of("/inference/prompted")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (9, 1)
    assert ask(limited, "raw").status_code == 429


def test_client_that_leaves_before_the_first_byte_is_charged_for_its_prompt(
    limited: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    arrived = threading.Event()

    def script(peer: Peer) -> None:
        arrived.set()
        peer.wait_until_closed_by_proxy()

    upstream.scripts["/inference/hasty"] = script
    head = b"POST /inference/hasty HTTP/1.1\r\nHost: p\r\nContent-Length: 400\r\n"
    token = make_token(team_id="hasty").encode()
    with limited.connect() as client:
        client.sendall(head + b"Authorization: Bearer " + token + b"\r\n\r\n" + b"x" * 400)
        assert arrived.wait(DEADLINE_S)
    line = limited.audit_of("/inference/hasty")
    assert (line["prompt_tokens"], line["tokens_source"]) == (100, "estimated")
    assert (line["outcome"], line["completion_tokens"]) == ("client_gone", 0)
    assert ask(limited, "hasty").status_code == 429


def test_second_stream_of_a_narrow_team_waits(
    limited: ProxyProcess, upstream: ScriptedUpstream
) -> None:
    release = threading.Event()

    def script(peer: Peer) -> None:
        peer.begin_stream()
        release.wait(DEADLINE_S)
        peer.end_stream()

    upstream.scripts["/long"] = script
    first = threading.Thread(target=ask, args=(limited, "narrow", "/long"))
    first.start()
    until(lambda: upstream.seen("/long"), "the first stream")
    reply = ask(limited, "narrow")
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "concurrency_limit_exceeded")
    release.set()
    first.join(DEADLINE_S)
    until(lambda: ask(limited, "narrow").status_code == 200, "the freed place")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"model": "small"}, 200),
        ("/v1/completions", {"model": "large"}, 403),
        ("/v1/completions", {"model": ["small"]}, 403),
        ("/v1/completions", {}, 403),
        ("/v1/completions", {"model": None}, 403),
        ("/inference/small", {}, 200),
        ("/inference/large", {"model": "small"}, 403),
        ("/inference%2Flarge", {"model": "small"}, 403),
        ("//inference//large", {"model": "small"}, 400),
        ("/chat/l%61rge", {"model": "small"}, 403),
        ("/v1/completions", {"pad": "x" * 3_000_000, "model": "small"}, 200),
        ("/v1/completions", {"pad": "x" * 3_000_000, "model": "large"}, 403),
        ("/v1/completions", {"pad": [[]] * 450_000, "model": "small"}, 403),  # not read
    ],
)
def test_model_must_be_on_the_teams_list(
    limited: ProxyProcess, path: str, body: dict[str, object], status: int
) -> None:
    reply = ask(limited, "choosy", path, **body)
    assert reply.status_code == status
    if status == 403:
        assert reply.json()["error"]["code"] == "model_not_allowed"


def test_edited_policy_is_taken_without_a_restart(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("{}")
    with running_proxy(tmp_path, upstream.url, POLICY_FILE=str(path)) as proxy:
        assert ask(proxy, "a").status_code == 200
        path.write_text("defaults: {models: [other]}")
        until(lambda: ask(proxy, "a").status_code == 403, "the new policy")
