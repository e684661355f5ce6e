"""A SQLite file with a schema, and a store of records in such a file."""

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import StoreFailed
from common.stores import Record

Connection = sqlite3.Connection

RECORDS_TIMEOUT_S = 5.0
TURN_S = 0.005
RECORDS_SCHEMA = """
    CREATE TABLE IF NOT EXISTS records (
        kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, name)
    );
"""


class SqliteFile:
    """A SQLite file in WAL mode with `synchronous=FULL`: commits survive a loss of power, and take
    a few milliseconds. The file is opened at the first use; if that fails, at the next one.

    Both context managers let one thread in at a time. They raise StoreFailed, whose message begins
    with `failed`.
    """

    def __init__(self, path: Path, schema: str, timeout_s: float) -> None:
        """`timeout_s` bounds the wait for other writers."""
        self._path = path
        self._schema, self._timeout_s = schema, timeout_s
        self._lock = threading.Lock()  # sqlite3 connections are not for concurrent use
        self._connection: Connection | None = None

    @contextmanager
    def connected(self, failed: str) -> Iterator[Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise StoreFailed(f"{failed}: {error}") from error

    @contextmanager
    def transaction(self, failed: str) -> Iterator[Connection]:
        """Commits the changes made inside, or none if it raises."""
        with self.connected(failed) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise

    def close(self) -> None:
        """Close the file, which cannot be used again. Idempotent."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _open(self) -> Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self._path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            self._choose_wal(connection)
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(self._schema)
        except sqlite3.Error:
            connection.close()
            raise
        # Where nobody calls `close`, Python 3.13 warns. Not at exit: a forked child exits, too.
        weakref.finalize(self, connection.close).atexit = False
        return connection

    def _choose_wal(self, connection: Connection) -> None:
        """Sets WAL mode. Waits for others that set it for a new file, as SQLite itself does not."""
        give_up_s = time.monotonic() + self._timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # or its subtypes
                if not is_busy or time.monotonic() > give_up_s:
                    raise
                time.sleep(TURN_S)


class SqliteRecords:
    """A store in a table `records`. Raises StoreFailed if the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, RECORDS_SCHEMA, RECORDS_TIMEOUT_S)
        with self._file.connected(f"cannot open {path}"):
            pass

    def load(self) -> list[Record]:
        with self._file.connected("cannot read the state") as connection:
            rows = connection.execute("SELECT kind, name, body FROM records").fetchall()
        return [Record(*row) for row in rows]

    def commit(self, changes: Iterable[Record]) -> None:
        every = list(changes)
        with self._file.transaction("the state was not saved") as connection:
            connection.executemany(
                "DELETE FROM records WHERE kind = ? AND name = ?",
                [(kind, name) for kind, name, body in every if body is None],
            )
            connection.executemany(
                "INSERT INTO records VALUES (?, ?, ?) "
                "ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body",
                [record for record in every if record.body is not None],
            )

    def close(self) -> None:
        self._file.close()
