"""A service that cannot start says why, and nothing else."""

import subprocess
import sys

import pytest

from benchmarking.serving import environment


@pytest.mark.parametrize(
    ("module", "variable", "service"),
    [
        ("optimizer", "INFERNO_PORT", "The optimizer"),
        ("weights", "WEIGHTS_PORT", "The weights service"),
    ],
)
def test_a_wrong_setting_ends_the_start(module: str, variable: str, service: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module],
        env=environment(**{variable: "none"}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{service} cannot start:\n  - {variable}: ")
    assert ended.stderr.count("\n") == 2
