"""A folder of pages of KV memory, which outlive their place in memory and the process.

Each record has a file `KEY.PARTS`, named in hexadecimal by its key and by the bits of the parts
that it has. The file holds a checksum and the parts. It is complete or absent. Damaged files are
removed, and while all files together exceed the limit, the least recently used ones, too.
"""

import logging
import os
import re
import time
import zlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, Full, Queue
from tempfile import TemporaryFile
from threading import Lock, Thread
from typing import NamedTuple

from common.files import OWNER_ALONE, whole_file

logger = logging.getLogger(__name__)

NAME = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{1,16})")
DRAFT = ".draft"
MAX_DRAFT_S = 3600.0  # an older draft was left by a process that was killed
MAGIC = b"HPF1"
HEADER_BYTES = len(MAGIC) + 4  # 4 bytes for a CRC-32
QUEUED_RECORDS = 4  # at most this many records wait to be written
MAX_READERS = 4  # threads that read one record each
WAIT_S = 60.0  # timeout of the writer's wait for a record; waits are repeated
JOIN_TIMEOUT_S = 5.0
STEP_NS = 1000  # difference between the dates of consecutive files
OWNERS_FOLDER = 0o700  # for the owner alone, because pages reveal prompts
ON_CUDA = "PREFIX_CACHE_DIR is for the CPU; unset it, or set DEVICE=cpu."
LESS_URGENT = 10  # niceness added to that of other threads
ZEROS = Path("/dev/zero")


def make_writable(folder: Path) -> None:
    """Make the folder if it does not exist. Raises OSError if this process may not write there."""
    folder.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
    TemporaryFile(dir=folder).close()


class RecordFile(NamedTuple):
    """What is known of a record's file."""

    parts: int
    size_bytes: int


class PageRecord(NamedTuple):
    key: bytes
    parts: int
    content: bytes


class PageFolder:
    """Records by key, which take at most `max_bytes` together. Its own threads read and write them.
    Decode thread only, except for `parts`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Raises OSError if the folder cannot be used."""
        self._folder = folder
        self._max_bytes = max_bytes
        make_writable(folder)
        self._lock = Lock()  # guards the next two fields
        self._stored: OrderedDict[bytes, RecordFile] = OrderedDict()  # least recently used first
        self._num_bytes = 0
        self._find_files()
        self._queue: Queue[PageRecord | None] = Queue(QUEUED_RECORDS)
        self._is_closing = False
        self._has_failed = False
        self._writer = Thread(target=self._write_all, name="prefix-writer", daemon=True)
        self._writer.start()
        self._readers = ThreadPoolExecutor(MAX_READERS, "prefix-reader")  # starts them when needed
        self._preparer = ThreadPoolExecutor(1, "prefix-memory", _be_less_urgent)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._stored)

    def parts(self, key: bytes) -> int | None:
        """Returns the bits of the parts that a record has; None if there is no record."""
        with self._lock:
            stored = self._stored.get(key)
            return None if stored is None else stored.parts

    def read(self, key: bytes, parts: int, pages: Sequence[memoryview]) -> Future[bool]:
        """Have a record's content read into `pages`, one after the other.

        The result is False if the record is gone, damaged or has other parts by now; the pages may
        then hold anything. One view may stand in for all pages that are not needed.
        """
        return self._readers.submit(self._read, key, parts, pages)

    def use(self, key: bytes) -> None:
        """Mark a record, if there is one, as the most recently used."""
        with self._lock:
            if key in self._stored:
                self._stored.move_to_end(key)

    def prepare(self, pages: Sequence[memoryview]) -> Future[bool]:
        """Have the system give memory to pages, by clearing them in a thread of low priority. The
        result says whether all were cleared."""
        return self._preparer.submit(_clear, pages)

    def wait(self, jobs: Collection[Future[bool]], timeout_s: float) -> None:
        """Wait until these jobs of `read` or `prepare` have ended, for at most `timeout_s`."""
        futures.wait(jobs, timeout_s)

    def put(self, record: PageRecord, timeout_s: float = 0.0) -> bool:
        """Queue a record to write. Returns False if the queue stays full, or the folder closed."""
        if self._is_closing:
            return False
        try:
            self._queue.put(record, timeout_s > 0, timeout_s or None)
        except Full:
            return False
        return True

    def close(self) -> None:
        """Write the queued records, and end the threads. Idempotent."""
        if not self._is_closing:
            self._is_closing = True
            with suppress(Full):  # the disk is stuck
                self._queue.put(None, timeout=JOIN_TIMEOUT_S)
        self._writer.join(JOIN_TIMEOUT_S)
        self._readers.shutdown()
        self._preparer.shutdown()
        self._date_files()

    def _date_files(self) -> None:
        """Date the files in the order of their use, so that the next process knows it."""
        with self._lock:
            stored = [*self._stored.items()]
        first_ns = time.time_ns() - len(stored) * STEP_NS
        for place, (key, (parts, _)) in enumerate(stored):
            with suppress(OSError):  # another process has removed it
                os.utime(self._path(key, parts), ns=(first_ns + place * STEP_NS,) * 2)

    def _find_files(self) -> None:
        found: list[tuple[int, bytes, RecordFile]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                is_draft, name = entry.name.endswith(DRAFT), NAME.fullmatch(entry.name)
                if not is_draft and name is None:
                    continue
                try:
                    state = entry.stat()
                except FileNotFoundError:  # another server has removed it
                    continue
                if is_draft and time.time() - state.st_mtime > MAX_DRAFT_S:
                    Path(entry).unlink(missing_ok=True)  # left by a process that was killed
                elif name is not None:
                    stored = RecordFile(int(name[2], 16), state.st_size)
                    found.append((state.st_mtime_ns, bytes.fromhex(name[1]), stored))
        for _, key, stored in sorted(found):
            self._note(key, stored)
        self._trim()

    def _read(self, key: bytes, parts: int, pages: Sequence[memoryview]) -> bool:
        with self._lock:
            stored = self._stored.get(key)
            if stored is None or stored.parts != parts:
                return False
        path, size_bytes = self._path(key, parts), HEADER_BYTES + sum(map(len, pages))
        try:
            with path.open("rb", buffering=0) as file:
                is_complete = os.fstat(file.fileno()).st_size == size_bytes
                header, checksum = file.read(HEADER_BYTES), 0
                for page in pages if is_complete else ():
                    is_complete = is_complete and file.readinto(page) == len(page)
                    checksum = zlib.crc32(page, checksum)
        except OSError:  # removed by another process or by hand
            self._remove(key)
            return False
        if not is_complete or header != _header(checksum):
            logger.warning("%s is damaged and is removed", path)
            self._remove(key)
            return False
        return True

    def _write_all(self) -> None:
        _be_less_urgent()
        while True:
            try:
                record = self._queue.get(timeout=WAIT_S)
            except Empty:
                continue
            if record is None:
                return
            try:
                self._write(record)
                self._has_failed = False
            except OSError as error:
                if not self._has_failed:
                    logger.warning("prefixes are not kept in %s: %s", self._folder, error)
                self._has_failed = True

    def _write(self, record: PageRecord) -> None:
        # The file need not survive a crash of the machine: the checksum reveals damage.
        path = self._path(record.key, record.parts)
        with whole_file(path, OWNER_ALONE, survives_crash=False) as draft, draft.open("wb") as file:
            file.write(_header(zlib.crc32(record.content)))
            file.write(record.content)
        size_bytes = HEADER_BYTES + len(record.content)
        if self.parts(record.key) != record.parts:  # its former file has another name
            self._remove(record.key)
        self._note(record.key, RecordFile(record.parts, size_bytes))
        self._trim()

    def _note(self, key: bytes, stored: RecordFile) -> None:
        with self._lock:
            before = self._stored.pop(key, None)
            self._stored[key] = stored
            self._num_bytes += stored.size_bytes - (before.size_bytes if before else 0)

    def _trim(self) -> None:
        while self._num_bytes > self._max_bytes:
            with self._lock:  # readers move and remove entries meanwhile
                oldest = next(iter(self._stored), b"")
            self._remove(oldest)

    def _remove(self, key: bytes) -> None:
        with self._lock:
            stored = self._stored.pop(key, None)
            if stored is None:
                return
            self._num_bytes -= stored.size_bytes
        try:
            self._path(key, stored.parts).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("a file of %s is not removed: %s", self._folder, error)

    def _path(self, key: bytes, parts: int) -> Path:
        return self._folder / f"{key.hex()}.{parts:x}"


def _be_less_urgent() -> None:
    """Let this thread have the processor when others do not need it."""
    with suppress(OSError):  # a sandbox may forbid it
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + LESS_URGENT)


def _clear(pages: Sequence[memoryview]) -> bool:
    with ZEROS.open("rb", buffering=0) as zeros:  # `readinto` releases the interpreter lock
        return all(zeros.readinto(page) == len(page) for page in pages)


def _header(checksum: int) -> bytes:
    return MAGIC + checksum.to_bytes(4, "little")
