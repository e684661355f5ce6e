"""What the suites of the stores share: where a store lives, and a writer that is killed."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lab.kit.servers import TIMEOUT_S


def place(kind: str, request: pytest.FixtureRequest) -> str:
    """Where a new "sqlite" or "redis" store lives: a path or a URL."""
    return str(request.getfixturevalue("sqlite_path" if kind == "sqlite" else "clean_redis_url"))


def start_writer(code: str, *arguments: object) -> "subprocess.Popen[str]":
    """A Python process that prints a number after each write that was acknowledged."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def kill_after(writer: "subprocess.Popen[str]", number: int) -> int:
    """Kill the writer once it has printed `number`; the last number that was read."""
    assert writer.stdout is not None
    acknowledged = next(said for said in map(int, writer.stdout) if said >= number)
    writer.kill()
    writer.communicate(timeout=TIMEOUT_S)
    return acknowledged
