"""The benches by their names."""

import subprocess
import sys
from importlib import import_module

import pytest

from lab.benches.__main__ import MODULES
from lab.kit.servers import ROOT, TIMEOUT_S


@pytest.mark.parametrize("name", MODULES)
def test_a_name_is_of_a_module_with_a_main(name: str) -> None:
    assert callable(import_module(f"lab.benches.{MODULES[name]}").main)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "lab.benches", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert all(name in done.stderr for name in MODULES)
