"""A real proxy in front of engines that are not Hearth, scripted as they answer."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from proxy.clients.model_list import MAX_LIST_BYTES
from tests.proxy.answers import DONE, chat_event, messages_stream, usage_event
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

KEY = "sk-an-upstreams-own"
PROMPT = "x" * 400
CHAT = "/v1/chat/completions"
EVENTS, JSON = "Content-Type: text/event-stream", "Content-Type: application/json"


def asked(peer: Peer) -> Any:
    return json.loads(peer.request.body)


def vllm(peer: Peer) -> None:
    """Tells usage when it is asked."""
    events = [chat_event("Hel"), chat_event("lo\n\ndata: [DONE]\n\n"), DONE]
    if asked(peer).get("stream_options", {}).get("include_usage"):
        events.insert(2, usage_event(5, 7))
    stream(peer, b"".join(events))


def strict(peer: Peer) -> None:
    """Knows no stream_options."""
    if "stream_options" in asked(peer):
        peer.reply(b'{"error": "unknown field"}', "422 Unprocessable Entity", JSON)
    else:
        stream(peer, chat_event("x" * 40) + DONE)


def stream(peer: Peer, answer: bytes) -> None:
    peer.begin_stream("text/event-stream")
    for at in range(0, len(answer), 50):
        peer.chunk(answer[at : at + 50])
    peer.end_stream()


def until_the_client_leaves(peer: Peer) -> None:
    peer.begin_stream("text/event-stream")
    peer.chunk(messages_stream("Hello", " there", ends=False))
    peer.wait_until_closed_by_proxy()


def embeddings(peer: Peer) -> None:
    usage = {"prompt_tokens": 8, "total_tokens": 8}
    answer = {"usage": usage, "data": [{"embedding": [0.5] * 9000}]}
    peer.reply(gzip.compress(json.dumps(answer).encode()), "200 OK", JSON, "Content-Encoding: gzip")


def models(peer: Peer) -> None:
    listed = [{"id": name, "object": "model"} for name in ("small", "large")]
    peer.reply(json.dumps({"object": "list", "data": listed}).encode(), "200 OK", JSON)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedUpstream]:
    """One that wants a key for all but its /health."""
    server = ScriptedUpstream()
    server.scripts |= {
        "/ready": lambda peer: peer.reply(b"", "404 Not Found"),
        "/health": lambda peer: peer.reply(b""),
        CHAT: vllm,
        "/v1/completions": lambda peer: stream(peer, chat_event("x" * 40) + DONE),
        "/v1/messages": until_the_client_leaves,
        "/v1/embeddings": embeddings,
        "/v1/models": models,
    }
    yield server
    server.stop()


@pytest.fixture(scope="module")
def foreign(
    engine: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    directory: Path = tmp_path_factory.mktemp("foreign")
    (directory / "policy.yaml").write_text("teams: {choosy: {models: [small]}, none: {models: []}}")
    (directory / "keys.yaml").write_text(f"{engine.url}: {KEY}")
    with running_proxy(
        directory,
        engine.url,
        POLICY_FILE=str(directory / "policy.yaml"),
        UPSTREAM_KEYS=str(directory / "keys.yaml"),
    ) as process:
        yield process


def ask(proxy: ProxyProcess, path: str, team: str = "a", **body: object) -> requests.Response:
    return requests.post(
        proxy.url + path,
        json={"prompt": PROMPT, "stream": True} | body,
        headers=bearer(team_id=team, role="team"),
        timeout=DEADLINE_S,
    )


def bill(proxy: ProxyProcess, reply: requests.Response) -> tuple[object, ...]:
    line = proxy.audit_with(request_id=reply.headers["X-Request-Id"])
    return line["prompt_tokens"], line["completion_tokens"], line["tokens_source"]


def test_stream_is_asked_for_usage_that_its_client_is_not_shown(foreign: ProxyProcess) -> None:
    reply = ask(foreign, CHAT)
    assert reply.content == chat_event("Hel") + chat_event("lo\n\ndata: [DONE]\n\n") + DONE
    assert bill(foreign, reply) == (5, 7, "usage")


def test_usage_event_is_left_out_of_an_answer_with_a_length(
    foreign: ProxyProcess, engine: ScriptedUpstream
) -> None:
    answer = chat_event("Hello") + usage_event(5, 7) + DONE
    engine.scripts[CHAT] = lambda peer: peer.reply(answer, "200 OK", EVENTS)
    reply = ask(foreign, CHAT)
    engine.scripts[CHAT] = vllm
    assert reply.content == chat_event("Hello") + DONE
    assert bill(foreign, reply) == (5, 7, "usage")


def test_client_that_asks_for_usage_gets_it(foreign: ProxyProcess) -> None:
    reply = ask(foreign, CHAT, stream_options={"include_usage": True})
    assert usage_event(5, 7) in reply.content
    assert bill(foreign, reply) == (5, 7, "usage")


def test_engine_that_refuses_the_question_is_asked_once(tmp_path: Path) -> None:
    engine = ScriptedUpstream()
    engine.scripts |= {"/ready": lambda peer: peer.reply(b""), CHAT: strict}
    with running_proxy(tmp_path, engine.url) as proxy:  # it remembers what this engine refuses
        replies = [ask(proxy, CHAT) for _ in range(2)]
    assert [reply.content for reply in replies] == [chat_event("x" * 40) + DONE] * 2
    assert len(engine.seen(CHAT)) == 3
    engine.stop()


def test_stream_that_tells_nothing_is_estimated_by_its_text(foreign: ProxyProcess) -> None:
    reply = ask(foreign, "/v1/completions")
    prompt, completion, source = bill(foreign, reply)
    assert (completion, source) == (10, "estimated")
    assert prompt == len(json.dumps({"prompt": PROMPT, "stream": True})) // 4


def test_client_that_leaves_pays_for_its_prompt_and_what_it_got(foreign: ProxyProcess) -> None:
    with foreign.begin("/v1/messages", json.dumps({"prompt": PROMPT})) as client:
        client.recv(1)
        until(lambda: b"there" in client.recv(65536), "the second piece")
    line = foreign.audit_of("/v1/messages")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (25, 3)
    assert (line["outcome"], line["tokens_source"]) == ("client_gone", "estimated")


def test_embeddings_cost_their_prompt_though_they_are_compressed(foreign: ProxyProcess) -> None:
    reply = ask(foreign, "/v1/embeddings", stream=False)
    assert len(reply.json()["data"][0]["embedding"]) == 9000
    assert bill(foreign, reply) == (8, 0, "usage")


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/", "/v1/models?x=1", "/openai/v1/models?api-version=preview"]
)
def test_team_sees_the_models_that_it_may_use(foreign: ProxyProcess, path: str) -> None:
    def names(team: str) -> list[str]:
        headers = bearer(team_id=team, role="team")
        reply = requests.get(foreign.url + path, headers=headers, timeout=DEADLINE_S)
        return [each["id"] for each in reply.json()["data"]]

    assert (names("choosy"), names("a")) == (["small"], ["small", "large"])


@pytest.mark.parametrize(("team", "ends"), [("choosy", ["small"] * 2), ("none", [None] * 2)])
def test_ends_of_a_page_are_those_of_the_models_shown(
    foreign: ProxyProcess, engine: ScriptedUpstream, team: str, ends: list[str | None]
) -> None:
    page = {"data": [{"type": "model", "id": name} for name in ("large", "small", "medium")]}
    told = json.dumps(page | {"has_more": False, "first_id": "large", "last_id": "medium"}).encode()
    engine.scripts["/v1/models"] = lambda peer: peer.reply(told, "200 OK", JSON)
    headers = bearer(team_id=team, role="team")
    reply = requests.get(f"{foreign.url}/v1/models", headers=headers, timeout=DEADLINE_S).json()
    engine.scripts["/v1/models"] = models
    assert [each["id"] for each in reply["data"]] == [name for name in ends[:1] if name]
    assert [reply["first_id"], reply["last_id"]] == ends


@pytest.mark.parametrize(
    "answer",
    [
        b"Content-Length: 4\r\n\r\n{}{}",
        b"Content-Length: 9\r\n\r\n{}",
        b"\r\n" + b" " * 2 * MAX_LIST_BYTES,
        b"Content-Encoding: gzip\r\n\r\n{}",
    ],
    ids=["no list", "cut", "long", "damaged"],
)
def test_list_that_cannot_be_read_is_not_shown(
    foreign: ProxyProcess, engine: ScriptedUpstream, answer: bytes
) -> None:
    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\n" + answer)
        peer.close()

    engine.scripts["/v1/models"] = script
    headers = bearer(team_id="choosy", role="team")
    reply = requests.get(f"{foreign.url}/v1/models", headers=headers, timeout=DEADLINE_S)
    engine.scripts["/v1/models"] = models
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_broken")


def test_team_may_ask_about_its_models_alone(foreign: ProxyProcess) -> None:
    def status(name: str) -> int:
        headers = bearer(team_id="choosy", role="team")
        url = f"{foreign.url}/v1/models/{name}"
        return requests.get(url, headers=headers, timeout=DEADLINE_S).status_code

    assert (status("small"), status("large")) == (200, 403)


def test_engine_gets_its_own_key_and_no_credential_of_a_client(
    foreign: ProxyProcess, engine: ScriptedUpstream
) -> None:
    token = make_token()
    for name in ("Authorization", "x-api-key"):
        value = f"Bearer {token}" if name == "Authorization" else token
        headers = {name: value, "api-key": token, "Cookie": f"hearth_token={token}"}
        requests.get(f"{foreign.url}/echo", headers=headers, timeout=DEADLINE_S)
    seen = engine.seen("/echo")
    assert [each.headers["authorization"] for each in seen] == [f"Bearer {KEY}"] * 2
    assert all(token.encode() not in each.raw_head for each in seen)
    assert KEY not in foreign.log() + foreign.audit_file.read_text()


def test_edited_keys_are_taken_without_a_restart(tmp_path: Path, engine: ScriptedUpstream) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"{engine.url}: {KEY}")

    def is_sent() -> bool:
        requests.get(f"{proxy.url}/edited", headers=bearer(), timeout=DEADLINE_S)
        return engine.seen("/edited")[-1].headers.get("x-api-key") == "sk-new"

    with running_proxy(tmp_path, engine.url, UPSTREAM_KEYS=str(path)) as proxy:
        path.write_text(f"{engine.url}: {{x-api-key: sk-new}}")
        until(is_sent, "the new key")
    assert "authorization" not in engine.seen("/edited")[-1].headers
