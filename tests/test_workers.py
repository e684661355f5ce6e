"""No test is run twice, and none is forgotten, whatever becomes of its worker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = "from tests.workers import pytest_addoption, pytest_runtestloop\n"
GOOD = "import os\ndef test_one(): pass\ndef test_two(): print(os.getpid())\n"
BAD = "import os\ndef test_one(): print('seen'); assert False\ndef test_two(): pass\n"
DEADLY = "import os\ndef test_one(): pass\ndef test_two(): os._exit(0)\ndef test_three(): pass\n"
SHARED = """
import pathlib, pytest
@pytest.fixture(scope="package")
def shared():
    with (pathlib.Path(__file__).parent / "made").open("a") as file:
        file.write("once")
"""
THREADED = (
    "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
)


@pytest.mark.parametrize(
    ("files", "outcome"),
    [
        ([GOOD] * 5, "10 passed"),
        ([BAD, GOOD, GOOD], "1 failed, 5 passed"),
        ([DEADLY, GOOD, BAD], "3 failed, 4 passed"),
        ([THREADED + GOOD], "starts some at import"),
    ],
)
def test_all_tests_are_accounted_for(tmp_path: Path, files: list[str], outcome: str) -> None:
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    run = on_three_workers(tmp_path)
    assert outcome in run.stdout + run.stderr
    assert (run.returncode == 0) == (outcome == "10 passed")
    assert ("seen" in run.stdout) == (BAD in files)


def test_a_package_is_run_by_one_worker(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("test_a.py", "test_z.py"):
        (tmp_path / name).write_text(GOOD)
    for number in range(4):
        (package / f"test_{number}.py").write_text("def test_it(shared): pass\n")
    (package / "conftest.py").write_text(SHARED)
    run = on_three_workers(tmp_path)
    assert "8 passed" in run.stdout, run.stdout
    assert (package / "made").read_text() == "once"


def on_three_workers(folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workers", "3"]
    return subprocess.run(
        [*command, "--rootdir", str(folder), "--import-mode=importlib", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take seconds to import
    )
