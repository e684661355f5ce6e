"""The benchmark runs, in small, and finds every token in its place. No figure is checked."""

import subprocess
import sys

from tests.proxy.support import ROOT


def test_bench_proxy_measures_every_target() -> None:
    load = ["--streams", "2", "--many", "4", "--rate", "20", "--seconds", "0.5"]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarking.bench_proxy", *load],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[0] for line in lines].count("proxy") == 3
    assert "nginx" in result.stdout.split()  # measured, or said to be missing
