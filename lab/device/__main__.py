"""`python -m lab.device`: every check that wants a GPU, one after the other, in 15 minutes.

A check is a process with a limit in seconds, and cannot stop the next. What it prints is kept, one
file a check, in a folder. The end is a table of what passed. `--only` runs some, for a machine that
is lent for less; `--rehearse` runs all on the CPU and tiny shapes, to find typing errors where time
is cheap.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.kit.servers import ROOT

CUDA_TESTS = ("tests/inference_api/engine", "tests/contracts", "tests/inference_api/speculation")
SHOWN_LINES = 40
REHEARSAL_FACTOR = 10  # of the limits: a CPU may be slow, and busy


@dataclass(frozen=True, slots=True)
class Check:
    """`rehearsal`: arguments on the CPU; None: it has no rehearsal."""

    name: str
    limit_s: float
    arguments: tuple[str, ...]
    rehearsal: tuple[str, ...] | None = None


CHECKS = (
    Check("machine", 20, ("lab.device.machine",), ("lab.device.machine",)),
    Check(
        "tests",
        130,
        ("pytest", "-q", "-k", "cuda or triton", *CUDA_TESTS),
        ("pytest", "-q", "--collect-only", "-k", "cuda or triton", CUDA_TESTS[0]),
    ),
    Check(
        "kernels",
        40,
        ("lab.device.kernels", "8b"),
        ("lab.device.kernels", "tiny", "--device", "cpu"),
    ),
    Check(
        "products",
        60,
        ("lab.device.products", "8b"),
        ("lab.device.products", "tiny", "--device", "cpu"),
    ),
    Check(
        "launches",
        70,
        ("lab.device.launches", "1.1b"),
        ("lab.device.launches", "tiny", "--device", "cpu"),
    ),
    Check(
        "host",
        30,
        ("lab.device.host", "1.1b"),
        ("lab.device.host", "tiny", "--device", "cpu"),
    ),
    Check(
        "bits",
        50,
        ("lab.device.bits", "1.1b"),
        ("lab.device.bits", "tiny", "--device", "cpu", "--steps", "1"),
    ),
    Check(
        "bits-int4",
        40,
        ("lab.device.bits", "1.1b", "--quantization", "int4", "--steps", "10"),
        ("lab.device.bits", "tiny", "--device", "cpu", "--steps", "1", "--quantization", "int4"),
    ),
    Check(
        "launches-int4",
        50,
        ("lab.device.launches", "1.1b", "--quantization", "int4"),
        ("lab.device.launches", "tiny", "--device", "cpu", "--quantization", "int4"),
    ),
    Check(
        "switches",
        50,
        ("lab.device.switches", "1.1b"),
        ("lab.device.switches", "tiny", "--device", "cpu"),
    ),
    Check(
        "experts",
        60,
        ("lab.device.experts", "30b"),
        ("lab.device.experts", "tiny", "--device", "cpu"),
    ),
    Check("steps", 140, ("lab.benches", "cuda", "--models", "1.1b", "--seconds", "0.4")),
    Check(
        "steps-int4",
        90,
        (
            *("lab.benches", "cuda", "--models", "1.1b", "--seconds", "0.2"),
            *("--quantization", "int4"),
        ),
    ),
    Check("draws", 40, ("lab.benches", "draw", "--times", "5")),
    Check("ring", 60, ("lab.device.ring",), ("lab.device.ring", "--device", "cpu")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in CHECKS])
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "device", help="a folder")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU")
    options = parser.parse_args(arguments)
    folder: Path = options.out
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for check in CHECKS:
        words = check.rehearsal if options.rehearse else check.arguments
        if words is None or (options.only and check.name not in options.only):
            continue
        limit_s = check.limit_s * (REHEARSAL_FACTOR if options.rehearse else 1)
        log_path = folder / f"{check.name}.txt"
        lines.append(_run(check.name, words, limit_s, log_path, options.rehearse))
    print("\n".join(["", "| check | result | seconds |", "|---|---|---|", *lines]))
    return 0 if all("| ok |" in line for line in lines) else 1


def _run(name: str, words: Sequence[str], limit_s: float, log_path: Path, on_cpu: bool) -> str:
    """Returns the line of the table."""
    print(f"== {name}: at most {limit_s:.0f} s", flush=True)
    interpreter = {"TRITON_INTERPRET": "1"} if on_cpu else {}
    began_s = time.monotonic()
    with log_path.open("w+") as log:
        try:
            ended = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
                env=os.environ | interpreter,
            )
            result = "ok" if ended.returncode == 0 else f"exit status {ended.returncode}"
        except subprocess.TimeoutExpired:
            result = f"over {limit_s:.0f} s"
        log.seek(0)
        print("".join(log.readlines()[-SHOWN_LINES:]), flush=True)
    return f"| {name} | {result} | {time.monotonic() - began_s:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
