"""Requests for a server without replicas: who is woken, who waits, and what is answered."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from proxy.errors import StartupError
from proxy.settings import Settings
from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    gauge,
    running_proxy,
    until,
)

PATH = "/inference/m"


class Controller:
    """Has one server that sleeps, of the model `m`, and says how soon it is ready."""

    def __init__(self) -> None:
        self.ready_in_s: float | None = None
        self.server = ScriptedUpstream()
        self.server.scripts["/sleepers"] = self._tell
        self.server.scripts["/wake/the%20chat"] = lambda peer: peer.reply(b"{}")

    @property
    def num_woken(self) -> int:
        return len(self.server.seen("/wake/the%20chat"))

    def _tell(self, peer: Peer) -> None:
        sleeper = {"server": "the chat", "models": ["m"], "ready_in_s": self.ready_in_s}
        peer.reply(json.dumps({"servers": [sleeper]}).encode())


@pytest.fixture
def controller() -> Iterator[Controller]:
    controller = Controller()
    yield controller
    controller.server.stop()


@pytest.fixture
def replica() -> Iterator[ScriptedUpstream]:
    replica = ScriptedUpstream(lambda peer: peer.reply(b"done"))
    yield replica
    replica.stop()


def list_replicas(folder: Path, *replicas: ScriptedUpstream) -> None:
    entries = [{"url": each.url, "models": ["m"], "server": "spare"} for each in replicas]
    (folder / "upstreams.yaml").write_text(yaml.safe_dump({"upstreams": entries}))


@contextmanager
def without_replicas(
    folder: Path, controller: Controller, *others: ScriptedUpstream, **env: Any
) -> Iterator[ProxyProcess]:
    list_replicas(folder, *others)
    file, url = str(folder / "upstreams.yaml"), controller.server.url
    with running_proxy(folder, "", UPSTREAMS_FILE=file, CLUSTER_URL=url, **env) as proxy:
        until(lambda: '"ready"' in proxy.metric("/ready"), "it knows who sleeps")
        yield proxy


def ask(proxy: ProxyProcess, path: str = PATH, verb: str = "POST") -> requests.Response:
    return requests.request(
        verb, proxy.url + path, json={"text": "x"}, headers=bearer(), timeout=DEADLINE_S
    )


def test_a_request_wakes_its_server_and_is_answered_by_its_first_replica(
    tmp_path: Path, controller: Controller, replica: ScriptedUpstream
) -> None:
    with without_replicas(tmp_path, controller) as proxy, ExitStack() as stack:
        assert controller.num_woken == 0
        clients = [stack.enter_context(proxy.begin(PATH)) for _ in range(3)]
        until(lambda: gauge(proxy, "hearth_proxy_awaiting_start") == 3, "they wait")
        until(lambda: controller.num_woken > 1, "it is told that they still do")
        assert gauge(proxy, "hearth_proxy_waiting") == 0
        list_replicas(tmp_path, replica)
        for client in clients:
            assert b"200 OK" in client.recv(1000)
        until(lambda: gauge(proxy, "hearth_proxy_awaiting_start") == 0, "nobody waits")


def test_a_replica_is_found_at_once_while_a_request_waits_for_it(
    tmp_path: Path, controller: Controller, replica: ScriptedUpstream
) -> None:
    """Long before it would have been looked for."""
    seldom = {"HEALTH_INTERVAL": "30", "QUEUE_TIMEOUT": "25"}
    with without_replicas(tmp_path, controller, **seldom) as proxy, proxy.begin(PATH) as client:
        until(lambda: controller.num_woken, "it waits")
        list_replicas(tmp_path, replica)
        assert b"200 OK" in client.recv(1000)


def test_request_that_falls_back_wakes_the_server_whose_turn_it_was(
    tmp_path: Path, controller: Controller, replica: ScriptedUpstream
) -> None:
    routes = "routes: {m: [{server: the chat}, {server: spare, priority: 1}]}"
    (tmp_path / "routes.yaml").write_text(routes)
    file = {"ROUTES_FILE": str(tmp_path / "routes.yaml"), "HEALTH_INTERVAL": "30"}
    with without_replicas(tmp_path, controller, replica, **file) as proxy:
        until(lambda: ask(proxy).text == "done" and controller.num_woken, "it is woken")
        num_before = controller.num_woken
        for _ in range(9):
            assert ask(proxy).text == "done"
        assert controller.num_woken < num_before + 9, "not by each request"


def test_who_leaves_waits_no_more(tmp_path: Path, controller: Controller) -> None:
    with without_replicas(tmp_path, controller) as proxy:
        proxy.begin(PATH).close()
        until(lambda: proxy.audit_of(PATH)["outcome"] == "client_gone")
        assert gauge(proxy, "hearth_proxy_awaiting_start") == 0


def test_a_start_that_takes_too_long_to_wait_for_is_refused_with_its_time(
    tmp_path: Path, controller: Controller
) -> None:
    controller.ready_in_s = 61.5
    with without_replicas(tmp_path, controller, QUEUE_TIMEOUT="60") as proxy:
        refused = ask(proxy)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "62")
        assert refused.json()["error"]["code"] == "server_starting"
        until(lambda: controller.num_woken == 1, "it is woken all the same")


def test_a_start_that_takes_longer_than_expected_is_refused_in_the_end(
    tmp_path: Path, controller: Controller
) -> None:
    with without_replicas(tmp_path, controller, QUEUE_TIMEOUT="0.3") as proxy:
        refused = ask(proxy)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert refused.json()["error"]["code"] == "server_starting"


def test_no_more_wait_than_there_are_places(tmp_path: Path, controller: Controller) -> None:
    with without_replicas(tmp_path, controller, QUEUE_SIZE="1") as proxy, proxy.begin(PATH):
        until(lambda: gauge(proxy, "hearth_proxy_awaiting_start") == 1, "one waits")
        refused = ask(proxy)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "all_rows_busy")


@pytest.mark.parametrize(
    ("path", "verb"), [("/inference/other", "POST"), ("/v1/models", "GET"), ("/elsewhere", "POST")]
)
def test_what_nobody_serves_wakes_nobody(
    tmp_path: Path, controller: Controller, path: str, verb: str
) -> None:
    with without_replicas(tmp_path, controller) as proxy:
        assert ask(proxy, path, verb).json()["error"]["code"] == "upstream_not_ready"
    assert controller.num_woken == 0


def test_a_server_that_goes_while_requests_wait_for_its_rows_is_woken(
    tmp_path: Path, controller: Controller, replica: ScriptedUpstream
) -> None:
    full = {"user_rows": 1, "busy_rows": 1, "queued": 8}
    replica.scripts["/ready"] = lambda peer: peer.reply(json.dumps(full).encode())
    with without_replicas(tmp_path, controller) as proxy:
        list_replicas(tmp_path, replica)
        until(lambda: replica.num_connections > 1, "it has said that its rows are taken")
        with proxy.begin(PATH) as client:
            until(lambda: gauge(proxy, "hearth_proxy_waiting") == 1, "it waits for a row")
            list_replicas(tmp_path)
            until(lambda: controller.num_woken, "it waits for a start")
            replica.scripts["/ready"] = lambda peer: peer.reply(b"{}")
            list_replicas(tmp_path, replica)
            assert b"200 OK" in client.recv(1000)


def test_a_controller_that_says_nothing_of_use_leaves_things_as_they_are(
    tmp_path: Path, controller: Controller
) -> None:
    with without_replicas(tmp_path, controller) as proxy, proxy.begin(PATH) as client:
        until(lambda: controller.num_woken, "it is told")
        controller.server.scripts["/sleepers"] = lambda peer: peer.reply(b"[" * 9000)
        until(lambda: "says of no servers" in proxy.log(), "it is missed")
        assert gauge(proxy, "hearth_proxy_awaiting_start") == 1
        client.close()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(StartupError, match=r"CLUSTER_URL='here': is no address; give one"):
        Settings.load(jwt_secret="x" * 32, cluster_url="here")
