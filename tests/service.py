"""A service of its own process, as users start it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from tests.ports import free_port

ROOT = Path(__file__).parents[1]


@contextmanager
def running_service(
    folder: Path, arguments: Sequence[str], port_variable: str, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(base URL, process) of a service that answers: `python *arguments` in `folder`."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), port_variable: str(port), **environment},
    ) as process:
        assert process.stderr is not None
        drain = Thread(target=process.stderr.read, name="drain-log")  # a full pipe would stop it
        try:
            assert any("Booting worker" in line for line in process.stderr)
            drain.start()
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(timeout=60)
            if drain.is_alive():
                drain.join(timeout=60)


def kill_nine(process: subprocess.Popen[str]) -> None:
    """SIGKILL to gunicorn and its worker: no handler runs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [process.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)
