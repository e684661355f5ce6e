"""Commands whose output fails, or whose extra is not there: one line at most, and no traceback."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.kit.servers import TIMEOUT_S
from scripts.hearth import COMMANDS

PLAN = ("plan", "--model", "llama-3.1-8b", "--rate", "1", "--accelerator", "h100")
HEARTH = ("-m", "scripts.hearth")
PRINTING: list[tuple[str, ...]] = [
    (*HEARTH, "--help"),
    (*HEARTH, *PLAN),
    (*HEARTH, "token", "generate-secret"),
    ("-m", "optimizer.plan", *PLAN[1:]),
    ("-m", "benchmarking", "--help"),
    ("-m", "weights", "--help"),
    ("-m", "scripts.jwt_util", "generate-secret"),
]
# Runs a module in which another one is not installed.
WITHOUT = """
import runpy, sys
sys.modules[sys.argv[1]] = None
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def ended(arguments: Sequence[str], output: int) -> tuple[int, str]:
    command = [sys.executable, *arguments]
    run = subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
def test_output_that_fails_is_said_in_one_line(command: Sequence[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        status, said = ended(command, full.fileno())
    assert (status, said.count("\n")) == (1, 1)
    assert "No space left on device" in said


@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
def test_output_that_nobody_reads_on_is_no_traceback(command: Sequence[str]) -> None:
    end, begin = os.pipe()
    os.close(end)
    status, said = ended(command, begin)
    os.close(begin)
    assert status == 1
    assert said.count("\n") <= 1
    assert "Traceback" not in said


@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
def test_output_that_was_closed_is_no_traceback(command: Sequence[str]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *command]
    run = subprocess.run(closed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("module", "lacking", "extra"),
    [
        ("benchmarking", "tqdm", "bench"),
        ("weights", "numpy", "weights"),
        ("optimizer", "numpy", "optimizer"),
    ],
)
def test_a_module_without_its_extra_names_it(module: str, lacking: str, extra: str) -> None:
    status, said = ended(["-c", WITHOUT, lacking, module, "--help"], subprocess.DEVNULL)
    assert status == 1
    assert said.startswith(f"{lacking} is not installed: pip install 'hearth[{extra}]'")
    assert said.count("\n") == 1
    assert COMMANDS["bench" if extra == "bench" else extra].extra == extra
