"""The embedded store: one SQLite file, which several processes may share."""

from collections.abc import Sequence
from pathlib import Path

from common.stores.sqlite_store import Connection, SqliteFile
from weights.search import Observation, Problem
from weights.session import (
    Session,
    UpdateEffect,
    apply_update,
    dump_observation,
    dump_problem,
    load_observation,
    load_problem,
)

TIMEOUT_S = 20.0  # wait for other writers
SCHEMA = """
    CREATE TABLE IF NOT EXISTS sessions (
        session_id TEXT PRIMARY KEY, problem TEXT NOT NULL, num_observations INTEGER NOT NULL,
        best TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS observations (
        session_id TEXT NOT NULL, number INTEGER NOT NULL, observation TEXT NOT NULL,
        PRIMARY KEY (session_id, number)
    ) WITHOUT ROWID;
"""


class SqliteStore:
    """The store in SQLite. A commit takes a few milliseconds, far less than a measurement.
    The file is opened at the first use, so a process that only mounts the service creates none."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, SCHEMA, TIMEOUT_S)
        self._failed = f"the SQLite store {path} failed"

    def append(
        self, session_id: str, problem: Problem, observations: Sequence[Observation]
    ) -> UpdateEffect:
        with self._file.transaction(self._failed) as connection:
            before = _find(connection, session_id)
            result = apply_update(before, session_id, problem, observations)
            session = result.session
            connection.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET "
                "problem = excluded.problem, num_observations = excluded.num_observations, "
                "best = excluded.best",
                (session_id, dump_problem(session.problem), session.num_observations,
                 dump_observation(session.best)),
            )  # fmt: skip
            first = before.num_observations if before else 0
            connection.executemany(
                "INSERT INTO observations VALUES (?, ?, ?)",
                [
                    (session_id, number, dump_observation(observation))
                    for number, observation in enumerate(observations, first)
                ],
            )
        return result

    def find(self, session_id: str) -> Session | None:
        with self._file.connected(self._failed) as connection:
            return _find(connection, session_id)

    def observations(self, session_id: str, first: int, count: int) -> list[Observation]:
        with self._file.connected(self._failed) as connection:
            rows = connection.execute(
                "SELECT observation FROM observations WHERE session_id = ? AND number >= ? "
                "ORDER BY number LIMIT ?",
                (session_id, first, count),
            ).fetchall()
        return [load_observation(line) for (line,) in rows]

    def sessions(self, first: int, count: int) -> list[Session]:
        with self._file.connected(self._failed) as connection:
            rows = connection.execute(
                "SELECT * FROM sessions ORDER BY session_id LIMIT ? OFFSET ?", (count, first)
            ).fetchall()
        return [_session(*row) for row in rows]

    def delete(self, session_id: str) -> bool:
        with self._file.transaction(self._failed) as connection:
            connection.execute("DELETE FROM observations WHERE session_id = ?", (session_id,))
            deleted = connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
            return deleted.rowcount > 0

    def close(self) -> None:
        self._file.close()


def _find(connection: Connection, session_id: str) -> Session | None:
    query = "SELECT * FROM sessions WHERE session_id = ?"
    row = connection.execute(query, (session_id,)).fetchone()
    return _session(*row) if row else None


def _session(session_id: str, problem: str, num_observations: int, best: str) -> Session:
    return Session(session_id, load_problem(problem), num_observations, load_observation(best))
