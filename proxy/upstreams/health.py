"""Health checks: asks every upstream whether it is ready, and for its user rows.

Event loop only, unless stated otherwise.
"""

import asyncio
import json
import logging
from collections.abc import Callable

from httptools import HttpParserError

from proxy.background import Repeated
from proxy.errors import StreamBroken, UpstreamBroken
from proxy.upstreams.balancer import Balancer, Upstream, UpstreamHealth, UpstreamRows
from proxy.upstreams.specs import MAX_ROWS

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 2.0
NONE_READY_INTERVAL_S = 0.2  # while none is ready, because requests may wait
MAX_ANSWER_BYTES = 64 * 1024
MAX_TAKEN = 2**31  # most requests that a server may report
NOT_FOR_US = frozenset({401, 403, 404, 405})  # the path needs a token, or does not exist


class HealthChecks:
    """Asks all upstreams at the same time: in `rounds` every `interval_s`, and five times a second
    while none is ready. Silent ones get until the timeout. `on_checked` is called after each."""

    def __init__(
        self, balancer: Balancer, interval_s: float, on_checked: Callable[[], object]
    ) -> None:
        self._balancer = balancer
        self._interval_s = interval_s
        self._on_checked = on_checked
        self.rounds = Repeated(self._round, self._pause_s)

    async def _round(self) -> None:
        await asyncio.gather(*map(self._check, self._balancer.upstreams))
        self._on_checked()

    def _pause_s(self) -> float:
        is_start = self._balancer.none_is_ready()
        return min(self._interval_s, NONE_READY_INTERVAL_S) if is_start else self._interval_s

    async def _check(self, upstream: Upstream) -> None:
        try:
            self._balancer.report_health(upstream, *await health_of(upstream))
        except Exception:
            # An error with one answer must not stop the other checks.
            log.exception("the health check of %s failed", upstream.name)


async def health_of(upstream: Upstream) -> tuple[UpstreamHealth, UpstreamRows | None]:
    """Returns whether an upstream is ready (its health path answers 2xx), and a Hearth's user rows.

    If that path is not available, /health is asked. An upstream without either counts as ready,
    because it speaks HTTP, and faults will show in its answers.
    """
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            status, body = await _ask(upstream, upstream.spec.health_path)
            if status in NOT_FOR_US and upstream.spec.health_path != "/health":
                status, body = await _ask(upstream, "/health")
    except TimeoutError:
        return UpstreamHealth.SILENT, None
    except (OSError, EOFError, ValueError, HttpParserError, UpstreamBroken, StreamBroken):
        return UpstreamHealth.NOT_READY, None
    if 200 <= status < 300 or status in NOT_FOR_US:
        return UpstreamHealth.READY, parse_rows(body)
    return UpstreamHealth.NOT_READY, None


async def _ask(upstream: Upstream, path: str) -> tuple[int, bytes]:
    """Returns status and body. Opens a connection, because accepting one is part of health."""
    connection = await upstream.pool.connect()
    try:
        lines = [f"GET {upstream.base_path}{path} HTTP/1.1", f"Host: {upstream.host}"]
        if upstream.key is not None:
            lines.append(": ".join(upstream.key))
        request = "\r\n".join([*lines, "Connection: close", "\r\n"])
        connection.begin("GET", request.encode("latin-1"))
        head = await connection.answered()
        return head.status, await connection.read_whole(MAX_ANSWER_BYTES) or b""
    finally:
        connection.abort()


def parse_rows(answer: bytes) -> UpstreamRows | None:
    """Returns the rows in the answer of Hearth's /ready; None for another server's."""
    try:
        state = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict):
        return None
    num, *taken = (state.get(name) for name in ("user_rows", "busy_rows", "queued"))
    counts = [count for count in taken if type(count) is int and 0 <= count <= MAX_TAKEN]
    if type(num) is not int or not 1 <= num <= MAX_ROWS or len(counts) < len(taken):
        return None
    return UpstreamRows(num, sum(counts))
