"""Writes and reads the raw files of a run: `run.json`, and `raw.jsonl` with a line per request.

Apart from `records`, which are pure.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from benchmarking.errors import InvalidResults, unreadable
from benchmarking.records import RequestRecord, Run
from common.files import append_whole, read_bounded, write_whole

RUN_FILE = "run.json"
RAW_FILE = "raw.jsonl"
MAX_RUN_BYTES, MAX_RAW_BYTES = 2**26, 2**31

_RUN = TypeAdapter(Run)
_RECORD = TypeAdapter(RequestRecord)


def write_run(folder: Path, run: Run) -> None:
    """Writes `run.json`: everything except the records, which `append_records` writes."""
    write_whole(folder / RUN_FILE, _RUN.dump_json(replace(run, records=()), indent=1))


def append_records(folder: Path, records: Iterable[RequestRecord]) -> None:
    """Adds records to `raw.jsonl`, so that a row is kept even if the next one fails."""
    lines = [_RECORD.dump_json(record) + b"\n" for record in records]
    append_whole(folder / RAW_FILE, b"".join(lines))


def read_run(folder: Path) -> Run:
    """Returns the run in a folder. Raises InvalidResults."""
    path = folder / RUN_FILE
    try:
        run = _RUN.validate_json(read_bounded(path, MAX_RUN_BYTES))
        path = folder / RAW_FILE
        *lines, _ = read_bounded(path, MAX_RAW_BYTES).split(b"\n")  # the last is incomplete
    except OSError as error:
        raise InvalidResults(f"{error}; name the folder of a run") from error
    except ValueError as error:
        raise unreadable(path, error, Run) from error
    records = (_record(f"{path}, line {number}", line) for number, line in enumerate(lines, 1))
    return replace(run, records=tuple(records))


def _record(place: str, line: bytes) -> RequestRecord:
    try:
        return _RECORD.validate_json(line)
    except ValueError as error:
        raise unreadable(place, error, RequestRecord) from error
