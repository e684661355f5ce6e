"""Asks many replicas at once, with a timeout, whether they are ready."""

import json
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import Enum

from cluster.engines import HEARTH, Engine, parse_counters
from cluster.errors import MetricsUnread
from common.fetch import OK, FetchBounds, FetchFailed, FetchLate, ask, fetch

BOUNDS = FetchBounds(connect_s=1.0, read_s=2.0, max_bytes=1024 * 1024)
ROUND_S = 1.0
MAX_THREADS = 32
METRICS_BOUNDS = replace(BOUNDS, max_bytes=8 * 2**20)


class ReplicaHealth(Enum):
    READY = "ready"
    NOT_READY = "not ready"  # the replica says so, or nothing listens
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class Probed:
    """A replica's answer. `busy_rows` is None if unknown; for engines other than Hearth it includes
    waiting requests. `models` are the names it serves; empty if it was not asked or does not
    say."""

    health: ReplicaHealth
    busy_rows: int | None = None
    models: tuple[str, ...] = ()


def probe(url: str, engine: Engine = HEARTH, asks_models: bool = False) -> Probed:
    """Asks one replica. With `asks_models`, asks a ready replica for its models' names, too."""
    try:
        answer = ask(f"{url}{engine.ready_path}", BOUNDS)
    except FetchLate:
        return Probed(ReplicaHealth.SILENT)
    except FetchFailed:
        return Probed(ReplicaHealth.NOT_READY)
    if answer.status != OK:
        return Probed(ReplicaHealth.NOT_READY, _busy_rows(answer.content))
    models = models_of(url) if asks_models else ()
    is_hearth = engine.drains_itself
    busy_rows = _busy_rows(answer.content) if is_hearth else _present(url, engine)
    return Probed(ReplicaHealth.READY, busy_rows, models)


class ReplicaProbes:
    """Asks replicas in parallel. Used by one thread, which must close it.

    A replica is not asked again before it has answered or timed out, so a replica that answers
    slowly occupies one thread at most, and delays no other.
    """

    def __init__(
        self, probe: Callable[[str, Engine], Probed] = probe, round_s: float = ROUND_S
    ) -> None:
        self._probe, self._round_s = probe, round_s
        self._pool = ThreadPoolExecutor(MAX_THREADS, "replica-probe")
        self._pending: dict[str, Future[Probed]] = {}

    def ask(self, urls: Mapping[str, Engine]) -> Mapping[str, Probed]:
        """Ask the replicas at the keys of `urls`; the values are their engines.

        Returns the answers of replicas that have answered or timed out. Later rounds return the
        other answers.
        """
        for url, engine in urls.items():
            if url not in self._pending:
                self._pending[url] = self._pool.submit(self._probe, url, engine)
        wait([self._pending[url] for url in urls], timeout=self._round_s)
        done = {url: each for url, each in self._pending.items() if each.done()}
        for url in done:
            del self._pending[url]
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


def _busy_rows(body: bytes) -> int | None:
    try:
        state = json.loads(body)
    except (ValueError, RecursionError):
        return None
    busy = state.get("busy_rows") if isinstance(state, dict) else None
    return busy if type(busy) is int else None


def _present(url: str, engine: Engine) -> int | None:
    """Returns the number of requests that run or wait, from the engine's metrics."""
    try:
        page = fetch(f"{url}/metrics", METRICS_BOUNDS).decode(errors="replace")
        return math.ceil(parse_counters(page, 0.0, engine).present)
    except (FetchFailed, MetricsUnread):
        return None
