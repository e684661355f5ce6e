import json
from pathlib import Path

import pytest

from cluster.controller.demand import OfferedLoad, PastLoad
from cluster.controller.journal import KEPT, Journal, past_in


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


def test_a_file_that_ends_within_a_line_is_put_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cluster.jsonl"
    path.write_text('{"n":0}\n{"n":')
    journal = Journal(path, max_bytes=2**16)
    journal.write({"n": 1})
    assert (lines(path), Path(f"{path}.1").read_text()) == ([1], '{"n":0}\n{"n":')
    assert journal.read_back() == [b'{"n":0}', b'{"n":', b'{"n":1}']
    assert f"{path} ends within a line" in caplog.text


def test_of_damaged_lines_nothing_is_believed_and_of_loads_the_latest_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load = {"arrivalRate": 60.0, "avgInTokens": 10, "avgOutTokens": 20}

    def line(second: int, *starts_s: float, arrived: float | None = 1.0, **keys: float) -> bytes:
        server = {"load": load | keys, "arrived_per_minute": arrived}
        at = f"1970-01-01T00:00:{second:02}.000+00:00"
        return json.dumps(
            {"at": at, "servers": {"s": server}, "starts_s": {"s": starts_s}}
        ).encode()

    def told(*found: bytes) -> tuple[dict[str, PastLoad], dict[str, list[float]]]:
        past = past_in([b'gin"}', *found], 50.0, 30.0)
        return dict(past.loads), {name: list(each) for name, each in past.starts_s.items()}

    seen = {"s": PastLoad(30.0, OfferedLoad(60.0, 10, 20))}
    assert told(line(19, 4.0)) == ({}, {"s": [4.0]}), "too old for a load"
    assert told(line(51, 4.0)) == ({}, {"s": [4.0]}), "of the future"
    assert told(line(30, 4.0), line(40, 5.0, arrived=None)) == (seen, {"s": [5.0]})
    assert told(line(30, 4.0), b'{"at":"1970-01-01T00:00:40Z","fault":"f"}') == (seen, {"s": [4.0]})
    assert not caplog.text
    damaged = [line(31, -1.0), line(31, float("nan")), line(31, arrivalRate=-1), line(31, 1e9)]
    damaged.append(line(31)[:-1])
    assert told(line(30, 4.0), *damaged, b"[]") == (seen, {"s": [4.0]})
    assert "left out: 6" in caplog.text
