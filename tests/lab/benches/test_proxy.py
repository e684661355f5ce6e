"""The benchmark runs, for a moment, and finds every token of 500 streams in its place.

No figure is checked: what a busy machine measures says nothing.
"""

import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.benches.proxy.targets import Targets
from tests.proxy.support import ROOT


def test_500_streams_through_every_target_lose_and_reorder_nothing() -> None:
    load = ["--streams", "2", "--many", "500", "--rate", "5", "--seconds", "0.6", "--no-highest"]
    load += ["--most", "20", "--hostile", "100"]
    result = subprocess.run(
        [sys.executable, "-m", "lab.benches", "proxy", *load],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[0] for line in lines if line and line[0] == "proxy"].count("proxy") == 6 + 1
    assert "nginx" in result.stdout.split()  # measured, or said to be missing


def test_others_that_do_not_start_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/bin/false")
    with ExitStack() as stack:
        targets = Targets(stack, tmp_path, "a secret")
        assert (targets.nginx(), targets.envoy()) == (None, None)
    assert capsys.readouterr().out.count("is left out: /bin/false did not come up: status 1") == 2
