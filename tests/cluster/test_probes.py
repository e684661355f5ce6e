"""Probes of many replicas: each in its time, whatever the others do."""

from collections import Counter
from collections.abc import Iterator
from threading import Event

import pytest

from cluster.actuators import probes
from cluster.actuators.probes import MAX_THREADS, Probed, ReplicaHealth, ReplicaProbes, probe
from cluster.engines import HEARTH, Engine
from common.fetch import FetchBounds
from tests.proxy.support import Peer, ScriptedUpstream

DEADLINE_S = 60.0
READY, SILENT = Probed(ReplicaHealth.READY), Probed(ReplicaHealth.SILENT)


class Fleet:
    """Replicas whose names begin with `slow` answer once `end` is set, the others at once."""

    def __init__(self) -> None:
        self.end = Event()
        self.asked: Counter[str] = Counter()

    def probe(self, url: str, engine: Engine) -> Probed:
        self.asked[url] += 1
        if url.startswith("slow"):
            self.end.wait(DEADLINE_S)
            return SILENT
        return READY


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.end.set()


@pytest.fixture
def asked(fleet: Fleet) -> Iterator[ReplicaProbes]:
    asked = ReplicaProbes(fleet.probe, round_s=0.05)
    yield asked
    asked.close()


def rounds_until(asked: ReplicaProbes, urls: list[str], answered: str) -> list[dict[str, Probed]]:
    """The answers of each round up to the first that has one of `answered`."""
    rounds = [dict(asked.ask(dict.fromkeys(urls, HEARTH)))]
    while answered not in rounds[-1]:
        assert len(rounds) < DEADLINE_S / 0.05
        rounds.append(dict(asked.ask(dict.fromkeys(urls, HEARTH))))
    return rounds


def test_one_that_drips_is_asked_once_and_nobody_waits_for_it(
    fleet: Fleet, asked: ReplicaProbes
) -> None:
    urls = ["slow", "a", "b"]
    for _ in range(10):
        assert all(each == READY for each in asked.ask(dict.fromkeys(urls, HEARTH)).values())
    assert fleet.asked["slow"] == 1
    rounds_until(asked, urls, "a")
    rounds_until(asked, urls, "b")
    fleet.end.set()
    assert rounds_until(asked, urls, "slow")[-1]["slow"] == SILENT


def test_more_of_them_than_threads_take_nobody_out_of_service(
    fleet: Fleet, asked: ReplicaProbes
) -> None:
    slow = [f"slow {number}" for number in range(MAX_THREADS)]
    asked.ask(dict.fromkeys(slow, HEARTH))
    for _ in range(10):
        assert asked.ask(dict.fromkeys([*slow, "a"], HEARTH)) == {}, (
            "nobody has asked it, so nobody knows better"
        )
    assert max(fleet.asked.values()) == 1
    fleet.end.set()
    assert rounds_until(asked, [*slow, "a"], "a")[-1]["a"] == READY
    assert fleet.asked["a"] == 1


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", b""]
)
def test_one_that_drips_is_silent_in_its_time(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "BOUNDS", FetchBounds(connect_s=30, read_s=0.3, max_bytes=1000))
    pause = Event()

    def drip(peer: Peer) -> None:
        peer.send(said)
        while not pause.wait(0.02):
            peer.send(b"x")

    server = ScriptedUpstream()
    server.scripts["/ready"] = drip
    try:
        assert probe(server.url) == SILENT
    finally:
        pause.set()
        server.stop()
