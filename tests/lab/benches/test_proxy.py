"""The benchmark runs, for a moment, and finds every token of 500 streams in its place.

No figure is checked: what a busy machine measures says nothing.
"""

import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.benches.proxy import targets
from lab.benches.proxy.bench import OTHERS
from lab.kit.results import tables
from lab.kit.servers import TIMEOUT_S
from lab.peers.install import NotInstalled, Recipe
from tests.proxy.support import ROOT


def test_500_streams_through_every_target_lose_and_reorder_nothing() -> None:
    load = ["--streams", "2", "--many", "500", "--rate", "5", "--seconds", "0.6"]
    load += ["--most", "20", "--hostile", "100", "--beside", "nginx"]
    result = subprocess.run(
        [sys.executable, "-m", "lab.benches", "proxy", *load],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    names = [row[0] for table in tables(result.stdout) for row in table["rows"]]
    assert (names.count("proxy"), names.count("proxy x2")) == (4, 5)
    assert "nginx" in result.stdout.split()  # measured, or said to be missing


def test_others_that_do_not_start_or_install_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(recipe: Recipe) -> str:
        raise NotInstalled(f"no {recipe.name} here")

    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/bin/false")
    monkeypatch.setattr(targets, "install", cannot)
    with ExitStack() as stack:
        assert targets.Targets(stack, tmp_path).others(OTHERS) == []
    assert capsys.readouterr().out.splitlines() == [
        "nginx is left out: /bin/false did not come up: status 1",
        "envoy is left out: no envoy here",
        "litellm is left out: no litellm here",
    ]
