"""Asks replicas whether they are ready: many at once, none longer than a bound."""

import http.client
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 * 1024
MAX_THREADS = 32


class Health(Enum):
    READY = "ready"
    NOT_READY = "not ready"  # it says so, or nobody listens
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class Answer:
    health: Health
    busy_rows: int = 0


class Probes:
    """One thread uses it, and must close it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MAX_THREADS, "replica-probe")

    def ask(self, urls: Iterable[str]) -> Mapping[str, Answer]:
        """A replica that does not answer in time counts as silent; its thread ends by itself."""
        asked: dict[str, Future[Answer]] = {url: self._pool.submit(ready, url) for url in urls}
        num_turns = 1 + len(asked) // MAX_THREADS
        wait(asked.values(), timeout=num_turns * 2 * TIMEOUT_S)
        silent = Answer(Health.SILENT)
        return {url: each.result() if each.done() else silent for url, each in asked.items()}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def ready(url: str) -> Answer:
    try:
        status, body = _get(url, "/ready")
    except TimeoutError:
        return Answer(Health.SILENT)
    except (OSError, ValueError, http.client.HTTPException):
        return Answer(Health.NOT_READY)
    return Answer(Health.READY if status == 200 else Health.NOT_READY, _busy_rows(body))


def models_of(url: str) -> tuple[str, ...]:
    """The names of the models that a replica serves; empty if it does not answer."""
    try:
        status, body = _get(url, "/v1/models")
        cards = json.loads(body)["data"] if status == 200 else []
        return tuple(str(card["id"]) for card in cards)
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return ()


def _get(url: str, path: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        client.request("GET", path)
        response = client.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES)
    finally:
        client.close()


def _busy_rows(body: bytes) -> int:
    try:
        state = json.loads(body)
    except (ValueError, RecursionError):
        return 0
    busy = state.get("busy_rows") if isinstance(state, dict) else None
    return busy if type(busy) is int else 0
