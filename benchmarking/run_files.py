"""Writes and reads the raw files of a run: `run.json`, and `raw.jsonl` with a line per request.

Apart from `records`, so that the process that sends the load starts without pydantic.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from benchmarking.errors import InvalidResults
from benchmarking.records import RequestRecord, Run
from common.files import append_whole, write_whole

RUN_FILE = "run.json"
RAW_FILE = "raw.jsonl"

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
    try:
        run = _RUN.validate_json((folder / RUN_FILE).read_bytes())
        with (folder / RAW_FILE).open("rb") as file:
            whole = (line for line in file if line.endswith(b"\n"))  # the last may be incomplete
            return replace(run, records=tuple(map(_RECORD.validate_json, whole)))
    except (OSError, ValidationError) as error:
        raise InvalidResults(f"{folder} holds no run: {error}") from error
