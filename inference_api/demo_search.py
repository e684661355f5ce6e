"""A small search for a split on this machine, for whoever wants to see one and has no cluster.

`scripts/tune_partition.py` does it, in a process of its own that yields to all others: three ranks
of the embedded model, held to unequal shares of a core. What it measures is told to the weights
service, whose session shows the search as any other.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock, Thread

from inference_api.engine.hardware import available_memory_bytes
from inference_api.errors import DemoRunning, Unavailable
from inference_api.shipped_files import SHIPPED

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "scripts.tune_partition", "--seconds", "0.3")
NICENESS = 10  # requests come first
NEEDED_BYTES = 2 * 2**30  # its processes take a little more than half of that together
RETRY_AFTER_S = 60
KEPT_LINES, MAX_LINE = 40, 200  # of what it printed last; characters
END_TIMEOUT_S = 35.0  # from SIGTERM; its ranks have 30
CLOSE_TIMEOUT_S = 5.0
TRIAL = re.compile(r" *\d+  (\d+(?:-\d+)+) +([\d.]+) +[\d.]+  \w+")

Layers = tuple[int, ...]  # of each rank
Tell = Callable[[str, Layers, float], None]  # session id, split and its tokens/s


class DemoStatus(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DemoState:
    """The search that runs or ran last. `lines`: the last that it printed."""

    status: DemoStatus
    session_id: str
    trials: int
    max_trials: int
    lines: tuple[str, ...]


class DemoSearch:
    """Any thread. Its own, `demo-search`, follows the process; there is one at a time."""

    def __init__(
        self,
        tell: Tell,
        command: Sequence[str] = COMMAND,
        free_bytes: Callable[[], int | None] = available_memory_bytes,
    ) -> None:
        self._tell = tell
        self._command = command
        self._free_bytes = free_bytes
        self._lock = Lock()  # guards all below
        self._status = DemoStatus.IDLE
        self._session_id = ""
        self._trials = self._max_trials = 0
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._thread: Thread | None = None

    @property
    def state(self) -> DemoState:
        with self._lock:
            return DemoState(
                self._status, self._session_id, self._trials, self._max_trials, tuple(self._lines)
            )

    def start(self, max_trials: int) -> DemoState:
        """Raises DemoRunning, and Unavailable where memory is short."""
        with self._lock:
            if self._process is not None:
                raise DemoRunning
            _check_memory(self._free_bytes())
            self._process = subprocess.Popen(
                [*self._command, "--trials", str(max_trials)],
                cwd=SHIPPED,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # what ends the server by Ctrl-C leaves this to `close`
            )
            with suppress(OSError):  # it may have ended already
                os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
            self._status = DemoStatus.RUNNING
            self._trials, self._max_trials = 0, max_trials
            self._session_id = time.strftime("demo %Y-%m-%d %H:%M:%S")
            self._lines.clear()
            self._thread = Thread(
                target=self._follow,
                args=(self._process, self._session_id),
                name="demo-search",
                daemon=True,
            )
            self._thread.start()
        return self.state

    def stop(self) -> DemoState:
        """Have it end, which takes a moment. Idempotent."""
        with self._lock:
            if self._process is not None and self._status is DemoStatus.RUNNING:
                self._status = DemoStatus.STOPPING
                self._process.terminate()
        return self.state

    def close(self) -> None:
        """The server ends."""
        self.stop()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _follow(self, process: subprocess.Popen[str], session_id: str) -> None:
        assert process.stdout is not None
        failure = ""
        try:
            for line in process.stdout:
                self._take(line.rstrip()[:MAX_LINE], session_id)
        except Exception as error:
            logger.exception("the demo search cannot go on")
            failure = f"{type(error).__name__}: {error}"[:MAX_LINE]
            process.terminate()
        with process.stdout:
            status = _end(process)
        with self._lock:
            if failure:
                self._lines.append(failure)
            was_stopped = self._status is DemoStatus.STOPPING and not failure
            is_sound = status == 0 and not failure
            self._status = DemoStatus.ENDED if is_sound else DemoStatus.FAILED
            if was_stopped:
                self._status = DemoStatus.STOPPED
            self._process = None

    def _take(self, line: str, session_id: str) -> None:
        trial = TRIAL.fullmatch(line)
        if trial is not None:
            layers = tuple(map(int, trial[1].split("-")))
            self._tell(session_id, layers, float(trial[2]))
        with self._lock:
            self._trials += trial is not None
            if line:
                self._lines.append(line)


def _check_memory(free_bytes: int | None) -> None:
    """Raises Unavailable: the models that are served must not be killed for a demo."""
    if free_bytes is not None and free_bytes < NEEDED_BYTES:
        raise Unavailable(
            f"A demo search needs {NEEDED_BYTES >> 20} MiB of free memory and {free_bytes >> 20} "
            "MiB are free; try it on another machine, or with fewer USER_ROWS.",
            RETRY_AFTER_S,
        )


def _end(process: subprocess.Popen[str]) -> int:
    """Its status, once it has ended; it has closed its output, or was told to."""
    try:
        return process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
