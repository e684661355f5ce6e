"""Writes the results of a bench to two files: its output as Markdown, below its command, commit and
machine, and the output's tables as JSON. They go to `var/bench/<bench>`, where the day's next run
replaces them, or with `--publish` to `lab/results/<bench>`, where nothing is replaced."""

import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Any, TextIO

from benchmarking.machine import describe_machine
from lab.kit.servers import ROOT

KEPT = ROOT / "var" / "bench"
PUBLISHED = ROOT / "lab" / "results"
PACKAGES = ("torch", "transformers", "gunicorn", "numpy", "scipy")
VERDICTS = (None, 0, 1)  # exit statuses of a bench that has measured; others mean failure
NOT_OF_A_NAME = re.compile(r"\((?:r|tm)\)|\b(?:processor|cpu)\b|@.*")
RULE = re.compile(r"\|(?:[ :-]+\|)+")  # the line below a table's head
Main = Callable[[], int | None]


def commit() -> str:
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.check_output(describe, cwd=ROOT, text=True, timeout=60).strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


@dataclass(frozen=True, slots=True)
class Run:
    """The facts about a bench's run that are known before it starts."""

    bench: str
    command: str
    commit: str = field(default_factory=commit)
    machine: str = field(default_factory=lambda: describe_machine(*PACKAGES))
    began: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d, %H:%M} UTC")

    @property
    def stem(self) -> str:
        """The name of its files: the date and the processor."""
        processor = NOT_OF_A_NAME.sub("", self.machine.partition(",")[0].lower())
        return f"{self.began[:10]}-{re.sub(r'[^a-z0-9]+', '-', processor).strip('-')}"

    def write(self, text: str, is_published: bool) -> Path:
        """Writes both files. Returns the path of the Markdown file."""
        path = (PUBLISHED if is_published else KEPT) / self.bench / f"{self.stem}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        numbers = count(2)
        while is_published and path.exists():
            path = path.with_stem(f"{self.stem}-{next(numbers)}")
        path.write_text(f"{self._head()}\n{text}")
        figures = asdict(self) | {"tables": tables(text)}
        path.with_suffix(".json").write_text(json.dumps(figures, indent=1, ensure_ascii=False))
        return path

    def _head(self) -> str:
        facts = f"- command: `{self.command}`\n- commit: {self.commit}\n- machine: {self.machine}"
        return f"# bench-{self.bench}, {self.began}\n\n{facts}\n"


class _Copied(io.TextIOBase):
    """Writes to an output and keeps a copy."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self.copy = io.StringIO()

    def write(self, text: str) -> int:
        self.copy.write(text)
        return self._output.write(text)

    def flush(self) -> None:
        self._output.flush()


def run(bench: str, main: Main, arguments: Sequence[str], is_published: bool) -> int:
    """Runs a bench and writes its results. Returns its exit status. A bench that raises an
    exception or refuses its arguments leaves no files."""
    begun = Run(bench, shlex.join(["python", "-m", "lab.benches", bench, *arguments]))
    with redirect_stdout(_Copied(sys.stdout)) as copied:
        status = _status(main)
    print(f"\nwritten to {begun.write(copied.copy.getvalue(), is_published)}")
    return status


def _status(main: Main) -> int:
    try:
        return main() or 0
    except SystemExit as ended:
        if ended.code not in VERDICTS:
            raise
        return int(ended.code or 0)


def tables(text: str) -> list[dict[str, Any]]:
    """Returns the Markdown tables of a text: `columns`, and `rows` of cells as text."""
    runs = groupby(text.splitlines(), lambda line: line.startswith("|"))
    candidates = [list(lines) for is_row, lines in runs if is_row]
    return [
        {"columns": _cells(head), "rows": [_cells(row) for row in rows]}
        for head, rule, *rows in (each for each in candidates if len(each) > 1)
        if RULE.fullmatch(rule)
    ]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
