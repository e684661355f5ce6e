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


def test_a_journal_is_carried_on(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    for number in range(2):
        Journal(path, max_bytes=2**16).write({"n": number})
    assert lines(path) == [0, 1]
