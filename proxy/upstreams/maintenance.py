"""The thread for periodic blocking work: watched files, and leases in Redis."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

TICK_S = 0.2


class Maintenance:
    """Runs its tasks every `interval_s`, or at once after `request_run`. Owned by the app, which
    starts and joins it."""

    def __init__(self, tasks: Sequence[Callable[[], object]], interval_s: float) -> None:
        self._tasks = tuple(tasks)
        self._interval_s = interval_s
        self._must_stop = threading.Event()
        self._is_run_requested = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        # Not started earlier, because threads do not survive gunicorn's fork.
        self._thread = threading.Thread(target=self._run, name="proxy-maintenance", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._must_stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def request_run(self) -> None:
        """Requests a run. Takes no lock, which might deadlock in a signal handler."""
        self._is_run_requested = True

    def _run(self) -> None:
        while not self._must_stop.is_set():
            self._is_run_requested = False
            for task in self._tasks:
                try:
                    task()
                except Exception:
                    # An error with one file must not stop the other tasks.
                    log.exception("a maintenance task failed")
            next_run_s = time.monotonic() + self._interval_s
            while time.monotonic() < next_run_s and not self._is_run_requested:
                if self._must_stop.wait(min(TICK_S, self._interval_s)):
                    return
