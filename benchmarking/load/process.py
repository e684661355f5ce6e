"""Runs the load in a process of its own, so that other work does not delay a send or a timestamp.

The parent writes a pickled `LoadJob` to its standard input and keeps that open. When it closes,
because the user stopped the run or the parent died, requests in flight are cut off. The process
writes pickles to standard output: a `Progress` every quarter second, then one `LoadResult`.
"""

import asyncio
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import uvloop

from benchmarking.errors import RowRefused
from benchmarking.load.generator import LoadJob, LoadResult, Progress, apply_load

ROOT = Path(__file__).resolve().parents[2]
EXIT_TIMEOUT_S = 30.0


def run_load(job: LoadJob, on_progress: Callable[[Progress], None], stop: Event) -> LoadResult:
    """Runs the job to its end, or until `stop` is set. Raises RowRefused if the process
    fails. It has a session of its own, so that Ctrl-C reaches only the parent."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarking.load.process"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            while isinstance(message := pickle.load(process.stdout), Progress):
                on_progress(message)
                if stop.is_set():
                    process.stdin.close()
            assert isinstance(message, LoadResult)
            return message
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            status = process.wait(EXIT_TIMEOUT_S)
            raise RowRefused(f"the load process ended with exit status {status}") from None


async def _run(job: LoadJob, send: Callable[[Progress], None]) -> LoadResult:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stdin_is_closed() -> None:
        loop.remove_reader(sys.stdin)
        stop.set()

    loop.add_reader(sys.stdin, stdin_is_closed)
    return await apply_load(job, stop, send)


def main() -> None:
    _, most_sockets = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_sockets, most_sockets))
    job = pickle.load(sys.stdin.buffer)
    # Under PYTHONUNBUFFERED, sys.stdout.buffer might write only a part of a message.
    with open(sys.stdout.fileno(), "wb", closefd=False) as messages:

        def send(message: Progress | LoadResult) -> None:
            pickle.dump(message, messages)
            messages.flush()

        send(uvloop.run(_run(job, send)))


if __name__ == "__main__":
    main()
