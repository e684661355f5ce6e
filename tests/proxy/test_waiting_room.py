"""Waiting for a user row: by turns, in order, not for ever; and in front of a real upstream."""

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import suppress

import pytest

from proxy.errors import AllRowsBusy, UpstreamNotReady
from proxy.inbound import InboundRequest, RequestBody, RoutingHints
from proxy.request_head import RequestHead
from proxy.upstreams import Balancer, Upstream, UpstreamSpec
from proxy.waiting_room import WaitingRoom


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
        self.room = WaitingRoom(self.choose, self.give_back, max_waiting)

    def choose(self, request: InboundRequest, tried: AbstractSet[Upstream]) -> Upstream:
        if self.error is not None:
            raise self.error
        if not self.num_free:
            raise AllRowsBusy("none")
        self.num_free -= 1
        self.served.append(request.head.target)
        return self.upstream

    def give_back(self, upstream: Upstream) -> None:
        self.num_free += 1
        self.room.admit()

    async def wait(self, name: str, team_id: str, timeout_s: float = 60.0) -> Upstream:
        head = RequestHead("POST", name, {})
        body = RequestBody(head, NoSource())
        request = InboundRequest(head, body, RoutingHints(), team_id, takes_row=True)
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

        def choose_but_for_the_first(
            request: InboundRequest, tried: AbstractSet[Upstream]
        ) -> Upstream:
            if request.head.target == "a1":
                raise AllRowsBusy("another model's")
            return choose(request, tried)

        rows.room = WaitingRoom(choose_but_for_the_first, rows.give_back, 10)
        tasks = await rows.begin("a1", "a2")
        await tasks[1]
        tasks[0].cancel()
        return rows.served

    assert asyncio.run(run()) == ["a2"]
