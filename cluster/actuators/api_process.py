"""Starts and ends a replica's process on this machine, in a session of its own.

It runs Hearth's API or another engine. Its id and start time identify it, so that a record never
matches another process, even after a restart of the machine.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.engines import filled

LAST_WORDS_BYTES = 4096
KILL_TIMEOUT_S = 5.0
DEVICES = "CUDA_VISIBLE_DEVICES"
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ApiProcess:
    """A process. `started` has the boot id and the clock tick of its start. Any thread."""

    pid: int
    started: str

    def is_running(self) -> bool:
        with suppress(ChildProcessError):  # not our child, or already reaped
            os.waitpid(self.pid, os.WNOHANG)
        return _started(self.pid) == self.started

    def terminate(self) -> None:
        """Make the process drain and exit. Idempotent."""
        if self.is_running():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its workers at once. Idempotent."""
        # A process group outlives its leader, whose id is not reused meanwhile.
        if self.is_running() or not Path(f"/proc/{self.pid}").exists():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        while self.is_running() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


def start_api(
    address: tuple[str, int],
    settings: Mapping[str, str],
    log_path: Path,
    *options: str,
    command: Sequence[str] = (),
) -> ApiProcess:
    """Start a process with the environment of this process and `settings`. `options` are for
    `launch`. `command` is another engine's command line, with places for address and devices."""
    host, port = address
    listening = {"SERVICE_HOST": host, "SERVICE_PORT": str(port)}
    state = {
        "WEIGHTS_DB": str(log_path.with_suffix(".weights.db")),
        "OPTIMIZER_STORE_PATH": str(log_path.with_suffix(".optimizer.db")),
    }
    variables = {**os.environ, **state, **settings, **listening}
    devices = variables.get(DEVICES, "")
    words = filled(command, host=host, port=port, devices=devices)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    # Objects of `subprocess` must be waited for, but this process may outlive us.
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "cluster.actuators.launch", *options, "--", *words],
        variables,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return ApiProcess(pid, _started(pid))


def devices_of(count: int) -> tuple[str, ...]:
    """Returns the names of the first `count` devices that this process may use."""
    visible = os.environ.get(DEVICES)
    return tuple(visible.split(",") if visible else map(str, range(count)))[:count]


def claimed_cores(count: int, folder: Path) -> tuple[int, ...]:
    """Claims `count` cores that no other process has claimed in this folder, or none if too few are
    free. Returns them. The claim lasts until this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    locks: dict[int, int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        if len(locks) == count:
            break
        lock = os.open(folder / f"core-{core}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locks[core] = lock
        except BlockingIOError:
            os.close(lock)
    if len(locks) == count:
        return tuple(locks)
    for lock in locks.values():
        os.close(lock)
    return ()


def pinned_to(cores: Sequence[int]) -> tuple[str, ...]:
    """Returns the options of `launch` that pin a process to these cores."""
    return ("--cores", ",".join(map(str, cores))) if cores else ()


def last_words(log_path: Path) -> str:
    """Returns the last lines of a process's log, for an error message."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log_path.stat().st_size - LAST_WORDS_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return " | ".join(lines[-3:])[-500:] or "it logged nothing"


def _started(pid: int) -> str:
    """Returns when the process started; empty if it does not run or is a zombie."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # The process's name, which precedes, may have any character; see proc_pid_stat(5).
        state, *fields = Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else f"{boot} {fields[18]}"
