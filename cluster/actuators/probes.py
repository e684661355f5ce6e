"""Asks replicas whether they are ready: many at once, and none longer than a bound."""

import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import Enum

from common.fetch import OK, FetchBounds, FetchFailed, FetchLate, ask

BOUNDS = FetchBounds(connect_s=1.0, read_s=2.0, max_bytes=1024 * 1024)
ROUND_S = 1.0
MAX_THREADS = 32


class ReplicaHealth(Enum):
    READY = "ready"
    NOT_READY = "not ready"  # it says so, or nobody listens
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class Probed:
    """`models`: the names of those that it serves; empty where it was not asked or does not say."""

    health: ReplicaHealth
    busy_rows: int = 0
    models: tuple[str, ...] = ()


def probe(url: str, asks_models: bool = False) -> Probed:
    """`asks_models`: for their names, too, where it is ready."""
    try:
        answer = ask(f"{url}/ready", BOUNDS)
    except FetchLate:
        return Probed(ReplicaHealth.SILENT)
    except FetchFailed:
        return Probed(ReplicaHealth.NOT_READY)
    if answer.status != OK:
        return Probed(ReplicaHealth.NOT_READY, _busy_rows(answer.content))
    models = models_of(url) if asks_models else ()
    return Probed(ReplicaHealth.READY, _busy_rows(answer.content), models)


class ReplicaProbes:
    """One thread uses it, and must close it.

    A replica is never asked again before it has answered or its time is over. So those that drip
    take a thread each and no more, and nobody waits for them.
    """

    def __init__(self, probe: Callable[[str], Probed] = probe, round_s: float = ROUND_S) -> None:
        self._probe, self._round_s = probe, round_s
        self._pool = ThreadPoolExecutor(MAX_THREADS, "replica-probe")
        self._asked: dict[str, Future[Probed]] = {}

    def ask(self, urls: Collection[str]) -> Mapping[str, Probed]:
        """Returns the answers of those that have answered, or have been silent for too long. Any
        that is missing still has time: its answer is in a later round's."""
        for url in urls:
            if url not in self._asked:
                self._asked[url] = self._pool.submit(self._probe, url)
        wait([self._asked[url] for url in urls], timeout=self._round_s)
        done = {url: each for url, each in self._asked.items() if each.done()}
        for url in done:
            del self._asked[url]
        return {url: each.result() for url, each in done.items()}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def models_of(url: str) -> tuple[str, ...]:
    try:
        answer = ask(f"{url}/v1/models", BOUNDS)
        cards = answer.json()["data"] if answer.status == OK else []
        return tuple(str(card["id"]) for card in cards)
    except (FetchFailed, ValueError, LookupError, TypeError, RecursionError):
        return ()


def _busy_rows(body: bytes) -> int:
    try:
        state = json.loads(body)
    except (ValueError, RecursionError):
        return 0
    busy = state.get("busy_rows") if isinstance(state, dict) else None
    return busy if type(busy) is int else 0
