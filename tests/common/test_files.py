"""Files are whole or not there, wherever the process that writes them is killed."""

import os
import re
import stat
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Barrier, Thread

import pytest

from common.files import OWNER_ALONE, append_whole, read_bounded, whole_file, write_whole
from lab.kit.servers import TIMEOUT_S
from tests.full_disk import full_disk

TOP = Path(__file__).parents[2]
KILLED = 9
# Writes a file, and ends at once before its n-th call of the system that Python lets us see.
WRITE = f"""
import os, sys
from pathlib import Path
from common.files import OWNER_ALONE, write_whole

left = int(sys.argv[1])

def kill(event, arguments):
    global left
    if event == "open" or event.startswith("os."):
        left -= 1
        if left < 0:
            os._exit({KILLED})

sys.addaudithook(kill)
write_whole(Path(sys.argv[2]), "new", OWNER_ALONE, replaces=sys.argv[3] == "True")
"""


@pytest.mark.parametrize(
    ("old", "replaces", "at_last"), [("", True, "new"), ("old", True, "new"), (None, False, "new")]
)
def test_a_kill_leaves_what_was_there_or_the_whole_file(
    old: str | None, replaces: bool, at_last: str, tmp_path: Path
) -> None:
    path, found = tmp_path / "secret", set()
    for num_calls in count():
        if old is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(old)
            path.chmod(OWNER_ALONE)
        command = [sys.executable, "-c", WRITE, str(num_calls), str(path), str(replaces)]
        ended = subprocess.run(command, cwd=TOP, timeout=TIMEOUT_S, check=False).returncode
        found.add(path.read_text() if path.exists() else None)
        assert not path.exists() or stat.S_IMODE(path.stat().st_mode) == OWNER_ALONE
        if ended != KILLED:
            break
    assert num_calls > 3
    assert found == {old, at_last}


def test_what_cannot_be_written_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_whole(path, "old")
    with pytest.raises(ValueError, match="half"), whole_file(path) as draft:
        raise ValueError(f"only half of {draft} is written")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("room", [0, 1, 9])
def test_what_finds_no_room_is_not_appended(tmp_path: Path, room: int) -> None:
    path = tmp_path / "lines"
    append_whole(path, b"one\n")
    with full_disk(4 + room), pytest.raises(OSError, match="large"):
        append_whole(path, b"two, three\n")
    append_whole(path, b"four\n")
    assert path.read_bytes() == b"one\nfour\n"


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5) == b"12345"
    for endless in (tmp_path / "file", Path("/dev/zero")):
        with pytest.raises(ValueError, match="it has more than 4 bytes; shorten it"):
            read_bounded(endless, 4)


def test_a_pipe_is_read_and_never_waited_for_where_nobody_writes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is a pipe, and nobody writes to it"):
        read_bounded(tmp_path / "pipe", 9)
    end, begin = os.pipe()  # as a shell's <(...)
    os.write(begin, b"12345")
    os.close(begin)
    assert read_bounded(Path(f"/dev/fd/{end}"), 9) == b"12345"
    os.close(end)


def test_of_many_that_create_a_file_at_once_one_does_and_all_find_that_one(tmp_path: Path) -> None:
    path, start = tmp_path / "secret", Barrier(8)
    found: list[str] = []

    def create(number: int) -> None:
        start.wait(60)
        with suppress(FileExistsError):
            write_whole(path, f"made by {number}", replaces=False)
        found.append(path.read_text())

    threads = [Thread(target=create, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(found) == 8
    assert set(found) == {path.read_text()}
    assert list(tmp_path.iterdir()) == [path]


# Where files are written otherwise, and why.
OTHERWISE = {
    "benchmarking/load/process.py": "a pipe",
    "weights/drivers/server.py": "a log",
    "common/files.py": "for all others",
    "cluster/actuators/api_process.py": "locks, which are empty",
    "cluster/actuators/local.py": "a lock, which is empty",
    "inference_api/loading/packing/folder.py": "locks, and moves its files itself",
    "inference_api/loading/packing/files.py": "what packed_folder.py moves to its place",
    "scripts/init.py": "does the same, and needs nothing but Python",
}
PACKAGES = (
    *("common", "inference_api", "proxy", "optimizer", "weights", "benchmarking", "cluster"),
    "scripts",
)
WRITES = re.compile(
    r"""\bwrite_(text|bytes)\(|\bopen\(.*"[wx]b?\+?b?"|O_CREAT|\b(torch\.save|save_file)\("""
)


def test_no_product_module_writes_a_file_otherwise() -> None:
    found = [
        f"{path.relative_to(TOP)}:{number}: {line.strip()}"
        for package in PACKAGES
        for path in sorted((TOP / package).rglob("*.py"))
        if not str(path.relative_to(TOP)).startswith(tuple(OTHERWISE))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WRITES.search(line) and "draft" not in line
    ]
    assert not found, "\n".join(found)
