"""Reads a trace of requests, and finds its windows with the highest load. A CSV file:

    arrival_s,input_tokens,output_tokens
    0.0,812,96
    0.4,35,410

Published traces use other names for these columns, and dates for times: see COLUMNS. Other columns
are ignored. Rows may be in any order.
"""

import csv
import io
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from common.files import read_bounded
from common.numerics import FloatArray
from common.wire import WireDict
from optimizer.errors import Fault, InvalidRequest
from optimizer.questions.how_many import MOST_TOKENS

MOST_BYTES = 64 * 2**20
MOST_ROWS = 1_000_000
MOST_S = 1e10  # before or after 0
COLUMNS = {
    "arrival_s": ("arrival_s", "timestamp"),
    "input_tokens": ("input_tokens", "contexttokens", "request tokens"),
    "output_tokens": ("output_tokens", "generatedtokens", "response tokens"),
}
ALLOWED_S = f"seconds from {-MOST_S:g} to {MOST_S:g}, or a date and time"
ALLOWED_TOKENS = f"a whole number from 0 to {MOST_TOKENS}"


class Peak(WireDict):
    """A window with the most requests or tokens, as `of` says: its start in s and mean request."""

    of: list[str]
    start: float
    requests: int
    arrivalRate: float
    avgInTokens: float
    avgOutTokens: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests by their arrival, in seconds since the first."""

    arrival_s: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray

    def peaks(self, window_s: float) -> list[Peak]:
        """Returns the windows with the most requests, prompt and answer tokens, each once."""
        ends = np.searchsorted(self.arrival_s, self.arrival_s + window_s)
        found: dict[int, list[str]] = {}
        for name, amounts in (
            ("requests", np.ones_like(self.arrival_s)),
            ("prompt tokens", self.input_tokens),
            ("answer tokens", self.output_tokens),
        ):
            before = np.concatenate(([0.0], np.cumsum(amounts)))
            found.setdefault(int(np.argmax(before[ends] - before[:-1])), []).append(name)
        return [
            {
                "of": names,
                "start": float(self.arrival_s[first]),
                "requests": int(ends[first]) - first,
                "arrivalRate": 60 * (int(ends[first]) - first) / window_s,
                "avgInTokens": float(self.input_tokens[first : ends[first]].mean()),
                "avgOutTokens": float(self.output_tokens[first : ends[first]].mean()),
            }
            for first, names in found.items()
        ]


def read_trace(path: Path, window_s: float) -> Trace:
    """Returns the trace in a file, which must last for at least a window. Raises InvalidRequest."""
    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8-sig")
        rows = _rows(path, csv.reader(io.StringIO(text, newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise file_fault(path, f"{error}; save it as CSV in UTF-8") from error
    except (OSError, ValueError) as error:
        raise file_fault(path, str(error)) from error
    if len(rows) < 2:
        raise file_fault(path, f"{len(rows)} rows; give 2 to {MOST_ROWS}")
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    trace = Trace(rows[:, 0] - rows[0, 0], rows[:, 1], rows[:, 2])
    if trace.arrival_s[-1] < window_s:
        raise file_fault(path, f"it lasts {trace.arrival_s[-1]:g} s; give --peak at most that")
    return trace


def _rows(path: Path, reader: Iterator[list[str]]) -> FloatArray:
    """Returns a row of values for each request, in the order of COLUMNS."""
    names, indices = [name.strip().lower() for name in next(reader, [])], []
    for column, allowed_names in COLUMNS.items():
        index = next((names.index(name) for name in allowed_names if name in names), None)
        if index is None:
            raise file_fault(path, f"line 1: no column {column}; name the columns there")
        indices.append(index)
    values = array("d")
    for line, cells in enumerate(reader, start=2):
        if len(values) >= MOST_ROWS * len(COLUMNS):
            raise file_fault(path, f"more than {MOST_ROWS} rows; give a part of it")
        for column, index in zip(COLUMNS, indices, strict=True) if cells else ():
            cell = cells[index].strip() if index < len(cells) else ""
            value = _seconds(cell) if column == "arrival_s" else _tokens(cell)
            if value is None:
                allowed = ALLOWED_S if column == "arrival_s" else ALLOWED_TOKENS
                raise file_fault(path, f"line {line}: {column} is {cell[:50]!r}; give {allowed}")
            values.append(value)
    return np.frombuffer(values).reshape(-1, len(COLUMNS))


def _tokens(cell: str) -> float | None:
    is_whole = cell.isascii() and cell.isdigit() and len(cell) <= len(str(MOST_TOKENS))
    return float(cell) if is_whole and int(cell) <= MOST_TOKENS else None


def _seconds(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        try:
            moment = datetime.fromisoformat(cell)
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            return None
    return value if abs(value) <= MOST_S else None


def file_fault(path: Path, message: str) -> InvalidRequest:
    return InvalidRequest([Fault(str(path), message)])
