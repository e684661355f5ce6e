import json
from pathlib import Path

from cluster.controller.journal import KEPT, Journal


def lines(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_files_are_bounded_and_the_youngest_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cluster.jsonl"
    journal = Journal(path, max_bytes=2**16)
    for number in range(1000):
        journal.write({"n": number, "text": "x" * 1000})
    files = [Path(f"{path}.{n}") for n in range(KEPT, 0, -1)] + [path]
    kept = [number for each in files for number in lines(each)]
    assert kept == list(range(kept[0], 1000))
    assert all(each.stat().st_size <= 2**16 for each in files)
    assert len(list(path.parent.iterdir())) == len(files)


def test_a_line_larger_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    journal = Journal(path, max_bytes=2**16)
    for number in range(3):
        journal.write({"n": number, "text": "x" * 2**17})
    assert lines(path) == [2]


def test_the_last_lines_are_read_back_in_order_and_whole_but_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    journal = Journal(path, max_bytes=2**16)
    for number in range(150):
        journal.write({"n": number, "text": "x" * 1000})
    for num_bytes in (1, 10**4, 10**5, 10**9):
        read = Journal(path, max_bytes=2**16).read_back(num_bytes)
        assert sum(map(len, read)) <= num_bytes
        numbers = [json.loads(line)["n"] for line in read[1:]]
        assert numbers == list(range(150))[-len(numbers) :] or not numbers
        assert len(numbers) >= min(num_bytes // 1100 - 1, 149)


def test_what_cannot_be_read_back_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    journal = Journal(path, max_bytes=2**16)
    journal.write({"n": 1})
    Path(f"{path}.1").mkdir()
    assert journal.read_back() == [b'{"n":1}']


def test_a_journal_is_carried_on(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    for number in range(2):
        Journal(path, max_bytes=2**16).write({"n": number})
    assert lines(path) == [0, 1]
