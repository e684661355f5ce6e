"""Where a stateful optimizer keeps its state: memory, SQLite or Redis, behind one protocol.

A store writes a set of record changes whole or not at all, and what `commit` returned from is
there after the process is killed. One process owns a store; calls may come from any thread.
"""

import sqlite3
import threading
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Protocol

import redis

from optimizer.errors import StoreFailed
from optimizer.state import Record

REDIS_TIMEOUT_S = 5.0
SQLITE_TIMEOUT_S = 5.0


class StateStore(Protocol):
    """Records by (kind, name). Any thread."""

    def load(self) -> list[Record]:
        """All records. Raises StoreFailed."""

    def commit(self, changes: Iterable[Record]) -> None:
        """Write all of them, or none: a record, or its deletion if `body` is None. Durable when
        it returns. Raises StoreFailed."""

    def close(self) -> None:
        """Give up connections. Idempotent."""


class MemoryStore:
    """Forgets everything with the process."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str], str] = {}

    def load(self) -> list[Record]:
        return [Record(kind, name, body) for (kind, name), body in list(self._bodies.items())]

    def commit(self, changes: Iterable[Record]) -> None:
        after = dict(self._bodies)
        for kind, name, body in changes:
            if body is None:
                after.pop((kind, name), None)
            else:
                after[kind, name] = body
        self._bodies = after

    def close(self) -> None:
        pass


class SqliteStore:
    """One file in WAL mode. `synchronous=FULL`: survives loss of power, not only of the process,
    at some milliseconds a change, which for a planner is nothing."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()  # sqlite3 connections are not for concurrent use
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=SQLITE_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS records (kind TEXT NOT NULL, name TEXT NOT NULL, "
                "body TEXT NOT NULL, PRIMARY KEY (kind, name))"
            )
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(f"cannot open {path}: {error}") from error

    def load(self) -> list[Record]:
        with self._lock:
            try:
                rows = self._connection.execute("SELECT kind, name, body FROM records").fetchall()
            except sqlite3.Error as error:
                raise StoreFailed(f"cannot read the state: {error}") from error
        return [Record(*row) for row in rows]

    def commit(self, changes: Iterable[Record]) -> None:
        written, deleted = _split(changes)
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self._connection.executemany(
                        "DELETE FROM records WHERE kind = ? AND name = ?",
                        [(record.kind, record.name) for record in deleted],
                    )
                    self._connection.executemany(
                        "INSERT INTO records VALUES (?, ?, ?) "
                        "ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body",
                        written,
                    )
                    self._connection.execute("COMMIT")
                except sqlite3.Error:
                    self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreFailed(f"the state was not saved: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class RedisStore:
    """A hash per kind under a prefix, written in one transaction. As durable as the Redis server
    is configured to be: set `appendonly yes` and `appendfsync always` there for the same promise
    as SQLite's."""

    def __init__(self, url: str, prefix: str = "optimizer") -> None:
        self._prefix = prefix
        self._redis: redis.Redis = redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=REDIS_TIMEOUT_S,
            socket_connect_timeout=REDIS_TIMEOUT_S,
        )

    def load(self) -> list[Record]:
        try:
            kinds = sorted(str(kind) for kind in self._redis.smembers(self._prefix))
            return [
                Record(kind, str(name), str(body))
                for kind in kinds
                for name, body in self._redis.hgetall(self._key(kind)).items()
            ]
        except redis.RedisError as error:
            raise StoreFailed(f"cannot read the state from Redis: {error}") from error

    def commit(self, changes: Iterable[Record]) -> None:
        written, deleted = _split(changes)
        try:
            with self._redis.pipeline(transaction=True) as pipeline:
                for kind, group in groupby(sorted(deleted), key=lambda record: record.kind):
                    pipeline.hdel(self._key(kind), *[record.name for record in group])
                for kind, group in groupby(sorted(written), key=lambda record: record.kind):
                    pipeline.sadd(self._prefix, kind)
                    for record in group:
                        pipeline.hset(self._key(kind), record.name, str(record.body))
                pipeline.execute()
        except redis.RedisError as error:
            raise StoreFailed(f"the state was not saved to Redis: {error}") from error

    def close(self) -> None:
        self._redis.close()

    def _key(self, kind: str) -> str:
        return f"{self._prefix}:{kind}"


def _split(changes: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """(to write, to delete)"""
    written: list[Record] = []
    deleted: list[Record] = []
    for change in changes:
        (deleted if change.body is None else written).append(change)
    return written, deleted
