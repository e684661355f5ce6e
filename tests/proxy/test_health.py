"""Health checks against real upstreams, in an event loop of the test's own."""

import asyncio

import pytest

from proxy.upstreams.balancer import Balancer, UpstreamHealth, UpstreamRows
from proxy.upstreams.health import MAX_ANSWER_BYTES, HealthChecks, health_of
from proxy.upstreams.specs import UpstreamSpec
from tests.proxy.support import DEADLINE_S, Peer, Script, ScriptedUpstream

ROWS = b'{"user_rows": 4, "busy_rows": 1, "queued": 2}'
LONG = b'{"user_rows": 4}' + b" " * 16 * MAX_ANSWER_BYTES


def chunked(peer: Peer) -> None:
    peer.begin_stream()
    peer.chunk(ROWS)
    peer.end_stream()


def until_closed(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + ROWS)
    peer.close()


def cut(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + ROWS)
    peer.close()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (lambda peer: peer.reply(ROWS), (UpstreamHealth.READY, UpstreamRows(4, 3))),
        (chunked, (UpstreamHealth.READY, UpstreamRows(4, 3))),
        (until_closed, (UpstreamHealth.READY, UpstreamRows(4, 3))),
        (lambda peer: peer.reply(LONG), (UpstreamHealth.READY, None)),
        (lambda peer: peer.reply(b"", "404 Not Found"), (UpstreamHealth.READY, UpstreamRows(4, 3))),
        (
            lambda peer: peer.reply(b"", "401 Unauthorized"),
            (UpstreamHealth.READY, UpstreamRows(4, 3)),
        ),
        (lambda peer: peer.reply(b"", "403 Forbidden"), (UpstreamHealth.READY, UpstreamRows(4, 3))),
        (lambda peer: peer.reply(ROWS, "503 Busy"), (UpstreamHealth.NOT_READY, None)),
        (lambda peer: peer.reply(b"", "302 Found"), (UpstreamHealth.NOT_READY, None)),
        (cut, (UpstreamHealth.NOT_READY, None)),
        (lambda peer: peer.send(b"ceci n'est pas HTTP\r\n\r\n"), (UpstreamHealth.NOT_READY, None)),
        (Peer.close, (UpstreamHealth.NOT_READY, None)),
        (Peer.reset, (UpstreamHealth.NOT_READY, None)),
    ],
    ids=[
        *("rows", "chunked", "until closed", "long", "no such path", "no token", "forbidden"),
        *("busy", "elsewhere", "cut"),
        *("no http", "closed", "reset"),
    ],
)
def test_health_is_what_the_upstream_answers(
    upstream: ScriptedUpstream, script: Script, found: tuple[UpstreamHealth, UpstreamRows | None]
) -> None:
    upstream.scripts |= {"/healthz": script, "/health": lambda peer: peer.reply(ROWS)}
    assert health(upstream) == found


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("200 OK", UpstreamHealth.READY),
        ("404 Not Found", UpstreamHealth.READY),
        ("401 Unauthorized", UpstreamHealth.READY),
        ("503 Loading", UpstreamHealth.NOT_READY),
        ("500 Dead", UpstreamHealth.NOT_READY),
    ],
)
def test_engine_without_a_health_path_for_us_is_what_its_health_says(
    upstream: ScriptedUpstream, status: str, found: UpstreamHealth
) -> None:
    upstream.scripts["/healthz"] = lambda peer: peer.reply(b"", "404 Not Found")
    upstream.scripts["/health"] = lambda peer: peer.reply(b"", status)
    assert health(upstream) == (found, None)


def health(upstream: ScriptedUpstream) -> tuple[UpstreamHealth, UpstreamRows | None]:
    async def ask() -> tuple[UpstreamHealth, UpstreamRows | None]:
        (asked,) = Balancer([UpstreamSpec(upstream.url, health_path="/healthz")], 1.0).upstreams
        return await health_of(asked)

    return asyncio.run(ask())


def test_upstreams_that_hang_are_waited_for_together_and_hold_no_other_up() -> None:
    hanging, ready = ScriptedUpstream(), ScriptedUpstream()
    hanging.default = Peer.wait_until_closed_by_proxy
    hung = [UpstreamSpec(f"{hanging.url}/{number}") for number in range(30)]

    async def check() -> list[UpstreamHealth]:
        balancer, rounds = Balancer([*hung, UpstreamSpec(ready.url)], 1.0), asyncio.Semaphore(0)
        checks = HealthChecks(balancer, DEADLINE_S, rounds.release)
        checks.rounds.start()
        async with asyncio.timeout(DEADLINE_S):
            await rounds.acquire()
        assert checks.rounds.is_alive
        checks.rounds.stop()
        return [upstream.health for upstream in balancer.upstreams]

    assert asyncio.run(check()) == [UpstreamHealth.SILENT] * len(hung) + [UpstreamHealth.READY]
    hanging.stop()
    ready.stop()


def test_what_fails_after_a_round_does_not_end_the_checks(upstream: ScriptedUpstream) -> None:
    upstream.scripts["/ready"] = lambda peer: peer.reply(ROWS)

    async def three_rounds() -> bool:
        rounds = asyncio.Semaphore(0)

        def fail() -> None:
            rounds.release()
            raise ZeroDivisionError

        checks = HealthChecks(Balancer([UpstreamSpec(upstream.url)], 1.0), 0.01, fail)
        checks.rounds.start()
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(3):
                await rounds.acquire()
        is_alive = checks.rounds.is_alive
        checks.rounds.stop()
        return is_alive

    assert asyncio.run(three_rounds())


def test_the_first_that_is_ready_is_found_long_before_the_next_round(
    upstream: ScriptedUpstream,
) -> None:
    upstream.scripts["/ready"] = lambda peer: peer.reply(b"", "503 Loading")

    async def until_ready() -> None:
        balancer, rounds = Balancer([UpstreamSpec(upstream.url)], 1.0), asyncio.Semaphore(0)
        checks = HealthChecks(balancer, 2 * DEADLINE_S, rounds.release)
        checks.rounds.start()
        async with asyncio.timeout(DEADLINE_S):
            await rounds.acquire()
            assert not balancer.is_ready()
            upstream.scripts["/ready"] = lambda peer: peer.reply(ROWS)
            while not balancer.is_ready():
                await rounds.acquire()
        checks.rounds.stop()

    asyncio.run(until_ready())
