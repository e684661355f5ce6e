"""Waiting for a user row: by turns, in order, not for ever; and in front of a real upstream."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from proxy.clients.inbound import InboundRequest, RequestBody, RoutingHints
from proxy.clients.request_head import RequestHead
from proxy.errors import AllRowsBusy, UpstreamNotReady
from proxy.upstreams.balancer import Balancer, Upstream, UpstreamHealth, UpstreamRows
from proxy.upstreams.specs import UpstreamSpec
from proxy.upstreams.waiting_room import WaitingRoom
from tests.proxy.support import (
    DEADLINE_S,
    Peer,
    ProxyProcess,
    ScriptedUpstream,
    bearer,
    running_proxy,
    until,
)


class NoSource:
    def set_reading(self, is_reading: bool) -> None: ...

    def invite_body(self) -> None: ...


class Rows:
    """An upstream whose rows are counted by hand."""

    def __init__(self, num_free: int = 0, max_waiting: int = 100) -> None:
        balancer = Balancer([UpstreamSpec("http://u:1")], 1.0)
        (self.upstream,) = balancer.upstreams
        self.num_free = num_free
        self.error: Exception | None = None
        self.served: list[str] = []
        self.room = WaitingRoom(self.choose, self.give_back, lambda hints: 0, max_waiting)

    def choose(self, hints: RoutingHints, tried: AbstractSet[Upstream]) -> Upstream:
        if self.error is not None:
            raise self.error
        if not self.num_free:
            raise AllRowsBusy("none")
        self.num_free -= 1
        self.served.append(hints.model or "")
        return self.upstream

    def give_back(self, upstream: Upstream) -> None:
        self.num_free += 1
        self.room.admit()

    async def wait(self, name: str, team_id: str, timeout_s: float = 60.0) -> Upstream:
        head = RequestHead("POST", "/", {})
        request = InboundRequest(head, RequestBody(head, NoSource()), RoutingHints(name), team_id)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        return await self.room.enter(request, set(), deadline_s)

    async def begin(self, *names: str) -> list[asyncio.Task[Upstream]]:
        """Names of the kind `team1`; they wait once this returns."""
        tasks = [asyncio.create_task(self.wait(name, name[:-1])) for name in names]
        await asyncio.sleep(0)
        return tasks


def test_teams_take_turns_and_each_is_served_in_order() -> None:
    async def run() -> list[str]:
        rows = Rows()
        tasks = await rows.begin("a1", "a2", "a3", "a4", "b1", "b2", "c1")
        assert len(rows.room) == 7
        for _ in tasks:
            rows.give_back(rows.upstream)
        await asyncio.gather(*tasks)
        assert len(rows.room) == 0
        return rows.served

    assert asyncio.run(run()) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_row_that_is_free_is_had_at_once() -> None:
    async def run() -> None:
        rows = Rows(num_free=1)
        assert await rows.wait("a1", "a", timeout_s=0) is rows.upstream

    asyncio.run(run())


def test_who_waits_too_long_is_told_and_forgotten() -> None:
    async def run() -> None:
        rows = Rows()
        with pytest.raises(AllRowsBusy, match="try again") as caught:
            await rows.wait("a1", "a", timeout_s=0.01)
        assert "QUEUE_TIMEOUT" in caught.value.reason
        assert len(rows.room) == 0
        rows.give_back(rows.upstream)
        assert (rows.num_free, rows.served) == (1, [])

    asyncio.run(run())


def test_no_more_wait_than_may() -> None:
    async def run() -> None:
        rows = Rows(max_waiting=2)
        tasks = await rows.begin("a1", "b1")
        with pytest.raises(AllRowsBusy) as caught:
            await rows.wait("c1", "c")
        assert "QUEUE_SIZE" in caught.value.reason
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(rows.room) == 0

    asyncio.run(run())


def test_what_makes_waiting_pointless_is_passed_on() -> None:
    async def run() -> None:
        rows = Rows()
        (task,) = await rows.begin("a1")
        rows.error = UpstreamNotReady("u is not ready")
        rows.room.admit()
        with pytest.raises(UpstreamNotReady):
            await task
        assert len(rows.room) == 0

    asyncio.run(run())


@pytest.mark.parametrize("is_row_first", [True, False])
def test_row_that_comes_at_the_time_of_leaving_is_not_lost(is_row_first: bool) -> None:
    async def run() -> None:
        rows = Rows()
        (leaving, staying) = await rows.begin("a1", "a2")
        if is_row_first:
            rows.give_back(rows.upstream)
            leaving.cancel()
        else:
            leaving.cancel()
            rows.give_back(rows.upstream)
        with suppress(asyncio.CancelledError):
            await leaving
        assert leaving.cancelled()
        assert await staying is rows.upstream
        assert (rows.num_free, len(rows.room)) == (0, 0)

    asyncio.run(run())


def test_who_wants_what_is_busy_holds_up_nobody_behind() -> None:
    async def run() -> list[str]:
        rows = Rows(num_free=1)
        choose = rows.choose

        def choose_but_for_the_first(hints: RoutingHints, tried: AbstractSet[Upstream]) -> Upstream:
            if hints.model == "a1":
                raise AllRowsBusy("another model's")
            return choose(hints, tried)

        rows.room = WaitingRoom(choose_but_for_the_first, rows.give_back, lambda hints: 0, 10)
        tasks = await rows.begin("a1", "a2")
        await tasks[1]
        tasks[0].cancel()
        return rows.served

    assert asyncio.run(run()) == ["a2"]


@pytest.mark.parametrize("num_waiting", [1, 15, 16, 17, 400])
def test_however_many_wait_for_a_model_they_keep_none_for_another_waiting(num_waiting: int) -> None:
    """A model may be busy, or its server being started, for minutes."""

    async def run() -> list[Upstream]:
        specs = [UpstreamSpec(f"http://{m}:1", models=(m,)) for m in ("busy", "free")]
        balancer = Balancer(specs, 1.0)
        busy, free = balancer.upstreams
        busy.rows = free.rows = UpstreamRows(1, 0)
        for upstream in balancer.upstreams:
            balancer.report_health(upstream, UpstreamHealth.READY, upstream.rows)

        room = WaitingRoom(balancer.choose, balancer.finish, balancer.line_of, 1000)

        async def wait(model: str) -> Upstream:
            head = RequestHead("POST", "/", {})
            hints = RoutingHints(model, takes_row=True)
            request = InboundRequest(head, RequestBody(head, NoSource()), hints, "a")
            return await room.enter(request, set(), asyncio.get_running_loop().time() + 60)

        taken = [await wait("busy") for _ in range(2)]
        held = [asyncio.create_task(wait("busy")) for _ in range(num_waiting)]
        await asyncio.sleep(0)
        assert (len(taken), len(room)) == (2, num_waiting)
        served = [await wait("free") for _ in range(2)]
        for task in held:
            task.cancel()
        assert all(upstream is free for upstream in served)
        return served

    assert len(asyncio.run(run())) == 2


class Serving:
    """An upstream with two rows that says so; each answer waits to be let go."""

    def __init__(self) -> None:
        self.server = ScriptedUpstream()
        self.taken_by_others = 0
        self.status = "200 OK"
        self.running: list[threading.Event] = []
        self.num_at_most = 0
        self.num_checks = 0
        self.server.scripts["/ready"] = self.ready
        self.server.scripts["/inference/x"] = self.generate

    def ready(self, peer: Peer) -> None:
        self.num_checks += 1
        rows = {"user_rows": 2, "busy_rows": self.taken_by_others, "queued": 0}
        peer.reply(json.dumps(rows).encode())

    def generate(self, peer: Peer) -> None:
        if self.status != "200 OK":
            peer.reply(b"full", self.status)
            return
        ended = threading.Event()
        self.running.append(ended)
        self.num_at_most = max(self.num_at_most, len(self.running))
        ended.wait(DEADLINE_S)
        self.running.remove(ended)
        peer.reply(b"done")

    def end_one(self) -> None:
        self.running[0].set()

    def end_all(self) -> None:
        for ended in list(self.running):
            ended.set()


@pytest.fixture
def serving() -> Iterator[Serving]:
    upstream = Serving()
    yield upstream
    upstream.end_all()
    upstream.server.stop()


@contextmanager
def in_front_of(directory: Path, serving: Serving, **env: Any) -> Iterator[ProxyProcess]:
    with running_proxy(directory, serving.server.url, **env) as proxy:
        until(lambda: serving.server.num_connections > 1, "it has said how many rows it has")
        yield proxy


def num_waiting(proxy: ProxyProcess) -> int:
    found = re.search(r"^hearth_proxy_waiting (\S+)$", proxy.metric("/metrics"), re.MULTILINE)
    return int(float(found[1])) if found else -1


def test_upstream_gets_its_rows_and_one_more_and_the_rest_waits(
    serving: Serving, tmp_path: Path
) -> None:
    with in_front_of(tmp_path, serving) as proxy, ExitStack() as stack:
        early = [stack.enter_context(proxy.begin("/inference/x")) for _ in range(3)]
        until(lambda: len(serving.running) == 3, "three are served")
        late = [stack.enter_context(proxy.begin("/inference/x")) for _ in range(2)]
        until(lambda: num_waiting(proxy) == 2, "two wait")
        assert requests.get(proxy.url + "/x", headers=bearer(), timeout=DEADLINE_S).ok, (
            "what takes no row does not wait for one"
        )
        late.pop().close()
        until(lambda: num_waiting(proxy) == 1, "who leaves waits no more")
        assert proxy.audit_of("/inference/x")["outcome"] == "client_gone"
        serving.end_one()
        until(lambda: num_waiting(proxy) == 0, "its turn")
        until(lambda: len(serving.running) == 3, "three are served again")
        serving.end_all()
        for sock in [*early, *late]:
            assert b"200 OK" in sock.recv(1000)
    assert (serving.num_at_most, len(serving.server.seen("/inference/x"))) == (3, 4)


def test_who_waits_in_vain_is_told_when_to_come_again(serving: Serving, tmp_path: Path) -> None:
    serving.taken_by_others = 3
    with in_front_of(tmp_path, serving, QUEUE_TIMEOUT="0.2", QUEUE_SIZE="1") as proxy:
        refused = ask(proxy)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "all_rows_busy")
    assert refused.headers["Retry-After"] == "1"


def ask(proxy: ProxyProcess) -> requests.Response:
    return requests.post(
        proxy.url + "/inference/x", json={"text": "x"}, headers=bearer(), timeout=DEADLINE_S
    )


def test_server_that_says_that_it_is_full_is_asked_again_once_a_row_is_free(
    serving: Serving, tmp_path: Path
) -> None:
    """Not sooner: a full server is not helped by being asked all the time."""
    with in_front_of(tmp_path, serving, HEALTH_INTERVAL="1") as proxy, ExitStack() as stack:
        stack.enter_context(proxy.begin("/inference/x"))
        until(lambda: len(serving.running) == 1, "one is served")
        serving.status, num_checks = "503 Service Unavailable", serving.num_checks
        second = stack.enter_context(proxy.begin("/inference/x"))
        until(lambda: num_waiting(proxy) == 1, "it waits")
        num_asked = len(serving.server.seen("/inference/x"))
        assert num_asked <= 2 + serving.num_checks - num_checks
        serving.status = "200 OK"
        first = serving.running[0]
        first.set()
        until(lambda: serving.running and serving.running[0] is not first, "it is served")
        serving.end_one()
        assert b"200 OK" in second.recv(1000)


def test_retries_end_when_they_are_spent(serving: Serving, tmp_path: Path) -> None:
    serving.status = "503 Service Unavailable"
    with in_front_of(tmp_path, serving, HEALTH_INTERVAL="0.005", QUEUE_TIMEOUT="60") as proxy:
        assert ask(proxy).text == "full"
    assert 50 <= len(serving.server.seen("/inference/x")) <= 120
