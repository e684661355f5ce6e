"""The thread that keeps what the proxy knows up to date: upstream health, watched files."""

import http.client
import logging
import threading
import time
from collections.abc import Callable, Sequence

from proxy.upstreams import Balancer, Health, Upstream

log = logging.getLogger(__name__)

TICK_S = 0.2
CHECK_TIMEOUT_S = 2.0


class Maintenance:
    """Runs its tasks every `interval_s`, or at once after `request_run`.

    Owned by the app, which starts and joins it.
    """

    def __init__(self, tasks: Sequence[Callable[[], object]], interval_s: float) -> None:
        self._tasks = tuple(tasks)
        self._interval_s = interval_s
        self._must_stop = threading.Event()
        self._is_run_requested = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        # Not earlier: a thread object made before gunicorn forks counts as ended after it.
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
        """A plain assignment: called from a signal handler, where taking a lock may deadlock."""
        self._is_run_requested = True

    def _run(self) -> None:
        while not self._must_stop.is_set():
            self._is_run_requested = False
            for task in self._tasks:
                try:
                    task()
                except Exception:
                    # One odd file or answer must not end all the other checks.
                    log.exception("a maintenance task failed")
            next_run_s = time.monotonic() + self._interval_s
            while time.monotonic() < next_run_s and not self._is_run_requested:
                if self._must_stop.wait(min(TICK_S, self._interval_s)):
                    return


def check_health(balancer: Balancer) -> None:
    """Ask every upstream, at the same time, whether it is ready.

    A check that hangs is waited for no longer than its time-outs allow, and left to end alone.
    """
    checks = [
        threading.Thread(target=_check_one, args=(balancer, upstream), daemon=True)
        for upstream in balancer.upstreams
    ]
    for check in checks:
        check.start()
    for check in checks:
        check.join(2 * CHECK_TIMEOUT_S)


def _check_one(balancer: Balancer, upstream: Upstream) -> None:
    balancer.report_health(upstream, health_of(upstream))


def health_of(upstream: Upstream) -> Health:
    """Ready if its health path answers 2xx. An upstream without such a path counts as ready:
    it speaks HTTP, and what is wrong with it will show in its answers.
    """
    client = upstream.pool.new_client(CHECK_TIMEOUT_S)
    try:
        client.request("GET", upstream.spec.base_path + upstream.spec.health_path)
        response = client.getresponse()
        is_ready = 200 <= response.status < 300 or response.status in (404, 405)
    except TimeoutError:
        return Health.SILENT
    except (OSError, ValueError, http.client.HTTPException):
        return Health.NOT_READY
    finally:
        client.close()
    return Health.READY if is_ready else Health.NOT_READY
