"""Records on disk are whole or gone, the oldest go first, and a restart finds the others."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.core.state.page_folder import HEADER_BYTES, PageFolder, PageRecord, RecordFile

CONTENT = bytes(range(100))
FILE_BYTES = HEADER_BYTES + len(CONTENT)


def key_of(number: int) -> bytes:
    return bytes([number]) * 32


def filled(folder: Path, numbers: range, max_bytes: int = 10**6) -> None:
    """Keeps records of these numbers, one after the other."""
    kept = PageFolder(folder, max_bytes)
    for number in numbers:
        assert kept.put(PageRecord(key_of(number), number + 1, CONTENT), timeout_s=60)
    kept.close()


def read(kept: PageFolder, number: int, page_bytes: int = len(CONTENT)) -> bytes | None:
    """The record of this number, read as pages of so many bytes."""
    content = bytearray(len(CONTENT))
    starts = range(0, len(CONTENT), page_bytes)
    pages = [memoryview(content)[at : at + page_bytes] for at in starts]
    job = kept.read(key_of(number), number + 1, pages)
    return bytes(content) if job.result(timeout=60) else None


def found(folder: Path, numbers: range, max_bytes: int = 10**6) -> list[int]:
    """The records that a new process finds, whole."""
    kept = PageFolder(folder, max_bytes)
    there = [number for number in numbers if kept.parts(key_of(number)) is not None]
    for number in there:
        assert kept.parts(key_of(number)) == number + 1
        assert read(kept, number) == read(kept, number, 40) == CONTENT
    kept.close()
    return there


def test_another_process_finds_what_was_kept(tmp_path: Path) -> None:
    filled(tmp_path / "new" / "folder", range(3))
    assert found(tmp_path / "new" / "folder", range(4)) == [0, 1, 2]
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o077 == 0


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    filled(tmp_path, range(5))
    kept = PageFolder(tmp_path, 10**6)
    kept.use(key_of(1))  # the second oldest
    kept.close()
    assert found(tmp_path, range(5), max_bytes=3 * FILE_BYTES + 1) == [1, 3, 4]
    assert len([*tmp_path.iterdir()]) == 3


def test_more_than_the_limit_is_never_kept(tmp_path: Path) -> None:
    filled(tmp_path, range(9), max_bytes=4 * FILE_BYTES)
    assert found(tmp_path, range(9)) == [5, 6, 7, 8]


def test_a_record_that_gets_more_parts_has_one_file(tmp_path: Path) -> None:
    kept = PageFolder(tmp_path, 10**6)
    for parts in (1, 3):
        assert kept.put(PageRecord(key_of(0), parts, CONTENT), timeout_s=60)
    kept.close()
    assert (kept.parts(key_of(0)), kept.num_bytes) == (3, FILE_BYTES)
    assert [file.name for file in tmp_path.iterdir()] == [f"{key_of(0).hex()}.3"]


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def cut(content: bytes, at: int) -> bytes:
    return content[:at]


@given(at=st.integers(0, FILE_BYTES - 1), damage=st.sampled_from((flip, cut)))
def test_a_damaged_record_is_gone(
    tmp_path_factory: pytest.TempPathFactory, at: int, damage: Callable[[bytes, int], bytes]
) -> None:
    folder = tmp_path_factory.mktemp("pages")
    filled(folder, range(2))
    file = folder / f"{key_of(0).hex()}.1"
    file.write_bytes(damage(file.read_bytes(), at))
    kept = PageFolder(folder, 10**6)
    assert read(kept, 0) is None
    assert kept.parts(key_of(0)) is None
    assert read(kept, 1) == CONTENT
    kept.close()
    assert found(folder, range(2)) == [1]
    assert not file.exists()


def test_files_of_others_stay_and_drafts_of_the_killed_go(tmp_path: Path) -> None:
    others = ("notes.txt", f"{key_of(0).hex()}", f"{key_of(0).hex()}.1.bak", "new.draft", "0.draft")
    for name in others:
        (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / others[-1], (1, 1))
    assert found(tmp_path, range(2)) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(others[:-1])


def test_a_record_removed_by_hand_is_gone(tmp_path: Path) -> None:
    filled(tmp_path, range(1))
    kept = PageFolder(tmp_path, 10**6)
    (tmp_path / f"{key_of(0).hex()}.1").unlink()
    assert read(kept, 0) is None
    kept.close()
    assert not kept.put(PageRecord(key_of(1), 1, CONTENT))


def test_memory_that_is_prepared_is_clear(tmp_path: Path) -> None:
    kept, memory = PageFolder(tmp_path, 10**6), bytearray(CONTENT)
    pages = [memoryview(memory)[10:50], memoryview(memory)[50:60]]
    assert kept.prepare(pages).result(timeout=60)
    assert memory == CONTENT[:10] + bytes(50) + CONTENT[60:]
    kept.close()


def test_a_disk_that_takes_nothing_more_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = PageFolder(tmp_path / "pages", 10**6)
    (tmp_path / "pages").rmdir()
    for number in range(3):
        assert kept.put(PageRecord(key_of(number), 1, CONTENT), timeout_s=60)
    kept.close()
    assert len(caplog.messages) == 1
    assert "prefixes are not kept" in caplog.text
    assert len(kept) == 0


def test_a_folder_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        PageFolder(tmp_path / "file", 10**6)


def test_nobody_touches_the_order_of_records_while_another_thread_may(tmp_path: Path) -> None:
    """Readers move what they read to its end: a writer that looked meanwhile would die of it."""
    kept = PageFolder(tmp_path, 3 * FILE_BYTES)

    class Guarded(OrderedDict[bytes, RecordFile]):
        def __getattribute__(self, name: str) -> Any:
            assert kept._lock.locked()
            return super().__getattribute__(name)

        def __iter__(self) -> Iterator[bytes]:
            assert kept._lock.locked()
            return super().__iter__()

    kept._stored = Guarded()
    for number in range(9):
        assert kept.put(PageRecord(key_of(number), number + 1, CONTENT), timeout_s=60)
    kept.close()
    assert found(tmp_path, range(9)) == [6, 7, 8]
