"""Runs compilers, one on each core. Imports no packages in a clone: see build.py."""

import atexit
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock, Thread

TIMEOUT_S = 900  # zig first compiles its own standard library


class BuildFailed(Exception):
    """The library could not be built; the message says why and what to do."""


def run_all(commands: Sequence[list[str]]) -> None:
    """Run all commands, starting them in order, one on each core. Raises BuildFailed."""
    compilers = _Compilers(commands)
    atexit.register(compilers.kill)  # where a server ends meanwhile, which waits for no daemon
    threads = [Thread(target=compilers.run, daemon=True) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(1.0)  # no longer: a signal just before a wait does not interrupt it
    finally:
        compilers.kill()
        for thread in threads:
            thread.join()
        atexit.unregister(compilers.kill)
    if compilers.failures:
        raise BuildFailed(compilers.failures[0])


class _Compilers:
    """Runs commands. `kill` ends what runs, and lets nothing more start."""

    def __init__(self, commands: Sequence[list[str]]) -> None:
        self.failures: list[str] = []
        self._lock = Lock()  # guards the next two fields
        self._started: list[subprocess.Popen[bytes]] = []
        self._commands = [*commands]

    def run(self) -> None:
        """Run commands, one after the other, until none is left. Any thread."""
        while True:
            with self._lock:
                if not self._commands:
                    return
                command = self._commands.pop(0)
                try:
                    process = subprocess.Popen(
                        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
                    )
                except OSError as error:
                    self.failures.append(str(error))
                    return
                self._started.append(process)
            if failure := _failure(process, command):
                self.failures.append(failure)

    def kill(self) -> None:
        with self._lock:
            self._commands.clear()
            for process in self._started:
                _kill(process)


def _failure(process: subprocess.Popen[bytes], command: Sequence[str]) -> str:
    """Waits for a compiler. Returns why it failed; empty if it did not."""
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
        f"{output.decode(errors='replace').strip()[-2000:]}"
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a compiler with the processes that it has started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # upon which it removes its files
