"""What is forked for tests is to itself what `python -m` starts."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lab.kit.servers import TIMEOUT_S
from tests.forked import ForkedProcess, fork_server

END = """
import atexit, sys, threading
atexit.register(print, "at the exit")
main = threading.main_thread()
threading.Thread(target=lambda: main.join() or print("a thread", flush=True)).start()
sys.exit("why")
"""
SHOW = """
import json, os, signal, sys, warnings

parent = f"/proc/{os.getppid()}/task"
print(json.dumps({
    "name": __name__,
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "leads_session": os.getsid(0) == os.getpid(),
    "files": [fd for fd in range(1024) if os.path.exists(f"/proc/self/fd/{fd}")],
    "takes_ctrl_c": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "threads_of_parent": len(os.listdir(parent)),
}))
print("to the log too", file=sys.stderr)
try:
    warnings.warn("one")
except UserWarning:
    sys.exit(7)
"""
WAIT = "import signal; print('begun', flush=True); signal.pause()"


def start(folder: Path, code: str, *arguments: str, **env: str) -> ForkedProcess:
    (folder / "module.py").write_text(code)
    with (folder / "log").open("wb") as log:
        return fork_server().start(
            ["module", *arguments], log, env, cwd=folder, start_new_session=True
        )


def test_it_has_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    process = start(tmp_path, SHOW, "--option", "value", PYTHONWARNINGS="error", OWN="1")
    assert process.wait(TIMEOUT_S) == 7
    shown, logged = (tmp_path / "log").read_text().splitlines()
    assert logged == "to the log too"
    assert json.loads(shown) == {
        "name": "__main__",
        "arguments": ["--option", "value"],
        "environment": {"PYTHONWARNINGS": "error", "OWN": "1"},
        "folder": str(tmp_path),
        "leads_session": True,
        "files": [0, 1, 2],
        "takes_ctrl_c": True,
        "threads_of_parent": 1,
    }


def test_a_crash_is_in_the_log(tmp_path: Path) -> None:
    assert start(tmp_path, "raise ValueError('of its own')").wait(TIMEOUT_S) == 1
    assert "ValueError: of its own" in (tmp_path / "log").read_text()


def test_it_ends_as_python_does(tmp_path: Path) -> None:
    process = start(tmp_path, END)
    assert process.wait(TIMEOUT_S) == 1
    assert (tmp_path / "log").read_text() == "why\na thread\nat the exit\n"


def test_it_is_waited_for_and_killed(tmp_path: Path) -> None:
    process = start(tmp_path, WAIT)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    process.kill()
    assert process.wait(TIMEOUT_S) == process.poll() == -signal.SIGKILL
    process.terminate()  # which nobody is there to take
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
