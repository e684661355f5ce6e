"""Runs compilers, one on each core. Imports no packages in a clone: see build.py."""

import os
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Lock

TIMEOUT_S = 900  # zig first compiles its own standard library


class BuildFailed(Exception):
    """The library could not be built; the message says why and what to do."""


def run_all(commands: Sequence[list[str]]) -> None:
    """Run all commands, starting them in order, one on each core. Raises BuildFailed."""
    compilers = _Compilers()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        try:
            futures = [threads.submit(compilers.failure, command) for command in commands]
            while wait(futures, timeout=1.0).not_done:
                pass  # a signal that comes just before a wait does not interrupt it
            failures = [failure for each in futures if (failure := each.result())]
        except BaseException:  # Ctrl-C: leaving the block waits for the threads
            compilers.kill()
            raise
    if failures:
        raise BuildFailed(failures[0])


class _Compilers:
    """Runs commands, one on each core. `kill` ends what runs, and lets nothing more start."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the next two fields
        self._started: list[subprocess.Popen[str]] = []
        self._is_killed = False

    def failure(self, command: list[str]) -> str:
        """Run `command`. Returns why it failed; empty if it did not. Any thread."""
        with self._lock:
            if self._is_killed:
                return "it was interrupted"
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,
            )
            self._started.append(process)
        with process:
            try:
                output, _ = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _kill(process)
                return f"compiling took more than {TIMEOUT_S} s; try again on a less busy machine"
        if process.returncode == 0:
            return ""
        return (
            f"the compiler failed; use GCC 11, Clang 12 or newer. {' '.join(command)}: "
            f"{output.strip()[-2000:]}"
        )

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            for process in self._started:
                _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a compiler with the processes that it has started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
