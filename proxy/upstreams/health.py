"""Health checks: every upstream is asked whether it is ready, and for its user rows.

Event loop only, but for what says otherwise.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress

from httptools import HttpParserError

from proxy.errors import StreamBroken, UpstreamBroken
from proxy.upstreams.balancer import Balancer, Health, Rows, Upstream
from proxy.upstreams.reply import UpstreamConnection

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 * 1024


class HealthChecks:
    """Asks all upstreams at the same time, every `interval_s`, or at once after `request_run`.

    `on_checked` is called after each round. Owned by the app, which starts and stops it.
    """

    def __init__(
        self, balancer: Balancer, interval_s: float, on_checked: Callable[[], object]
    ) -> None:
        self._balancer = balancer
        self._interval_s = interval_s
        self._on_checked = on_checked
        self._is_wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="health checks")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def is_alive(self) -> bool:
        """Any thread."""
        return self._task is not None and not self._task.done()

    def request_run(self) -> None:
        self._is_wanted.set()

    async def _run(self) -> None:
        while True:
            self._is_wanted.clear()
            await asyncio.gather(*map(self._check, self._balancer.upstreams))
            self._on_checked()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._is_wanted.wait()

    async def _check(self, upstream: Upstream) -> None:
        try:
            self._balancer.report_health(upstream, *await health_of(upstream))
        except Exception:
            # One odd answer must not end all the other checks.
            log.exception("the health check of %s failed", upstream.name)


async def health_of(upstream: Upstream) -> tuple[Health, Rows | None]:
    """Ready if its health path answers 2xx, and what Hearth's says of its user rows.

    An upstream without such a path counts as ready: it speaks HTTP, and what is wrong with it will
    show in its answers.
    """
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            status, body = await _ask(upstream)
    except TimeoutError:
        return Health.SILENT, None
    except (OSError, EOFError, ValueError, HttpParserError, UpstreamBroken, StreamBroken):
        return Health.NOT_READY, None
    if 200 <= status < 300 or status in (404, 405):
        return Health.READY, parse_rows(body)
    return Health.NOT_READY, None


async def _ask(upstream: Upstream) -> tuple[int, bytes]:
    """Status and body, on a connection of its own: whether it accepts any is part of the answer."""
    spec = upstream.spec
    connection = await upstream.pool.connect()
    try:
        path = spec.base_path + spec.health_path
        request = f"GET {path} HTTP/1.1\r\nHost: {spec.netloc}\r\nConnection: close\r\n\r\n"
        connection.begin("GET", request.encode("latin-1"))
        head = await connection.answered()
        body = _Body(connection)
        try:
            await connection.relay(body)
        except StreamBroken:
            if not body.is_too_long:
                raise
        return head.status, bytes(body.data)
    finally:
        connection.abort()


class _Body:
    """Takes an answer's body, and no more of it than one that tells the rows may have."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self.data = bytearray()

    @property
    def is_too_long(self) -> bool:
        return len(self.data) > MAX_ANSWER_BYTES

    def take(self, pieces: list[bytes], is_last: bool) -> None:
        self.data += b"".join(pieces)
        if self.is_too_long and not is_last:
            self._connection.give_up(UpstreamBroken(f"over {MAX_ANSWER_BYTES} bytes of health"))


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
