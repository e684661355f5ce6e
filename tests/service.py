"""A service of its own process, as `python -m` starts it."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.kit.servers import TIMEOUT_S, Process, eventually
from tests.forked import fork_server
from tests.ports import free_port

ROOT = Path(__file__).parents[1]


@contextmanager
def running_service(
    folder: Path, arguments: Sequence[str], port_variable: str, **environment: str
) -> Iterator[tuple[str, Process]]:
    """(base URL, process) of a service that answers: a module and its arguments, in `folder`."""
    port = free_port()
    log_path = folder / f"service-{port}.log"
    own = {**os.environ, port_variable: str(port), **environment}
    with log_path.open("wb") as log:
        process = fork_server().start(arguments, log, own, cwd=folder)

    def has_started() -> bool:
        assert process.poll() is None, log_path.read_text()
        return "Booting worker" in log_path.read_text()

    try:
        eventually(has_started)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def kill_nine(process: Process) -> None:
    """SIGKILL to gunicorn and its worker: no handler runs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [process.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    process.wait(TIMEOUT_S)
