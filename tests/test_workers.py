"""No test is run twice, and none is forgotten, whatever becomes of its worker."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = "from tests.workers import pytest_addoption, pytest_runtestloop\n"
GOOD = "import os\ndef test_one(): pass\ndef test_two(): print(os.getpid())\n"
BAD = "import os\ndef test_one(): print('seen'); assert False\ndef test_two(): pass\n"
DEADLY = "import os\ndef test_one(): pass\ndef test_two(): os._exit(0)\ndef test_three(): pass\n"
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
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").touch()
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workers", "3"]
    run = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "--import-mode=importlib", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in run.stdout + run.stderr
    assert (run.returncode == 0) == (outcome == "10 passed")
    assert ("seen" in run.stdout) == (BAD in files)
