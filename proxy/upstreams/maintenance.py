"""The thread that keeps what the proxy knows up to date: upstream health, watched files."""

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from proxy.upstreams.balancer import Balancer, Health, Rows, Upstream, UpstreamSpec

log = logging.getLogger(__name__)

TICK_S = 0.2
CHECK_TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 * 1024


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
    balancer.report_health(upstream, *health_of(upstream.spec))


def health_of(spec: UpstreamSpec) -> tuple[Health, Rows | None]:
    """Ready if its health path answers 2xx, and what Hearth's says of its user rows.

    An upstream without such a path counts as ready: it speaks HTTP, and what is wrong with it will
    show in its answers.
    """
    client = _new_client(spec)
    try:
        client.request("GET", spec.base_path + spec.health_path)
        response = client.getresponse()
        is_ready = 200 <= response.status < 300 or response.status in (404, 405)
        rows = parse_rows(response.read(MAX_ANSWER_BYTES)) if is_ready else None
    except TimeoutError:
        return Health.SILENT, None
    except (OSError, ValueError, http.client.HTTPException):
        return Health.NOT_READY, None
    finally:
        client.close()
    return (Health.READY if is_ready else Health.NOT_READY), rows


def parse_rows(answer: bytes) -> Rows | None:
    """The rows in the answer of Hearth's /ready; None for what other servers say."""
    try:
        state = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict):
        return None
    num, *taken = (state.get(name) for name in ("user_rows", "busy_rows", "queued"))
    counts = [count for count in taken if type(count) is int and count >= 0]
    if type(num) is not int or num < 1 or len(counts) < len(taken):
        return None
    return Rows(num, sum(counts))


def _new_client(spec: UpstreamSpec) -> http.client.HTTPConnection:
    parts = urlsplit(spec.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=CHECK_TIMEOUT_S)
