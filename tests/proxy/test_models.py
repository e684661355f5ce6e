"""Engines with different models behind one address."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
import yaml

from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    Script,
    ScriptedUpstream,
    bearer,
    running_proxy,
    until_usable,
)

JSON = "Content-Type: application/json"


def listing(*names: str) -> Script:
    """`created` tells whose entry it is."""
    return lambda peer: peer.reply(
        json.dumps(
            {
                "object": "list",
                "data": [{"id": name, "created": peer.upstream.port} for name in names],
            }
        ).encode(),
        "200 OK",
        JSON,
    )


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ScriptedUpstream]]:
    """Two of `chat` and one of `code`, which also lists what it is not asked for."""
    servers = {name: ScriptedUpstream(named) for name in ("chat-1", "chat-2", "code")}
    for name, server in servers.items():
        server.scripts["/v1/models"] = listing(*(["chat"] if name != "code" else ["code", "chat"]))
    yield servers
    for server in servers.values():
        server.stop()


def named(peer: Peer) -> None:
    peer.reply(b"%d" % peer.upstream.port)


@pytest.fixture(scope="module")
def proxy(
    servers: dict[str, ScriptedUpstream], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("models")
    entries = [
        {"url": server.url, "models": [name.partition("-")[0]]} for name, server in servers.items()
    ]
    (folder / "upstreams.yaml").write_text(yaml.safe_dump({"upstreams": entries}))
    (folder / "policy.yaml").write_text("teams: {coders: {models: [code]}}")
    with running_proxy(
        folder,
        "x",
        UPSTREAMS_FILE=str(folder / "upstreams.yaml"),
        POLICY_FILE=str(folder / "policy.yaml"),
    ) as process:
        until_usable(process, len(servers))
        yield process


def get(proxy: ProxyProcess, path: str, team: str = "a") -> requests.Response:
    headers = bearer(team_id=team, role="team")
    return requests.get(proxy.url + path, headers=headers, timeout=DEADLINE_S)


def names_in(reply: requests.Response) -> list[str]:
    return sorted(entry["id"] for entry in reply.json()["data"])


def test_list_has_the_models_of_all_servers_once(proxy: ProxyProcess) -> None:
    reply = get(proxy, "/v1/models")
    assert reply.status_code == 200
    assert names_in(reply) == ["chat", "code"]
    assert names_in(get(proxy, "/v1/models", "coders")) == ["code"]


def test_question_for_a_model_goes_to_a_server_of_it(
    proxy: ProxyProcess, servers: dict[str, ScriptedUpstream]
) -> None:
    assert get(proxy, "/v1/models/code").text == str(servers["code"].port)
    assert get(proxy, "/v1/models/nobodys").status_code == 200, "any server says what it thinks"
    assert get(proxy, "/openapi.json").status_code == 200


def sick(peer: Peer) -> None:
    peer.reply(b"{}", "500 Internal Server Error", JSON)


def cut(peer: Peer) -> None:
    peer.send(b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"data": [')
    peer.close()


@pytest.mark.parametrize(
    "script",
    [
        sick,
        cut,
        Peer.reset,
        lambda peer: peer.reply(b"[]"),
        lambda peer: peer.reply(b'{"data": {"id": "code"}}'),
        lambda peer: peer.reply(b'{"data": [7, null, {"id": 7}, {"id": ""}]}'),
        lambda peer: peer.reply(b" " * 2**20 + b"{}"),
    ],
)
def test_list_that_cannot_be_had_leaves_the_others(tmp_path: Path, script: Script) -> None:
    with ExitStack() as stack:
        # What names no model goes to the one that takes any.
        good, bad = ScriptedUpstream(named), ScriptedUpstream(named)
        for server in (good, bad):
            stack.callback(server.stop)
        good.scripts["/v1/models"], bad.scripts["/v1/models"] = listing("chat"), script
        entries = [{"url": good.url}, {"url": bad.url, "models": ["code"]}]
        (tmp_path / "upstreams.yaml").write_text(yaml.safe_dump({"upstreams": entries}))
        file = str(tmp_path / "upstreams.yaml")
        proxy = stack.enter_context(running_proxy(tmp_path, "x", UPSTREAMS_FILE=file))
        reply = get(proxy, "/v1/models")
        assert (reply.status_code, names_in(reply)) == (200, ["chat"])
        assert bad.seen("/v1/models")
