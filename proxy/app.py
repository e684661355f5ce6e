"""The proxy's application, from its start in a worker to the end of its drain.

Event loop only, unless stated otherwise.
"""

import asyncio
import json
import logging
from functools import partial

from common.addresses import is_allowed
from common.connections.answers import content_headers
from common.logs import new_request_id
from proxy.access.gate import origins_for
from proxy.audit import AuditLog, AuditRecord, Outcome
from proxy.background import Aside, Repeated
from proxy.clients.client import ClientConnection, Exchange
from proxy.clients.crowd import Crowd
from proxy.clients.origins import PREFLIGHT_HEADERS, cors_headers, is_preflight
from proxy.errors import ProxyError
from proxy.metrics import Gauges, Metrics
from proxy.probes import Answer, MetricsPort
from proxy.settings import Settings
from proxy.upstreams.health import HealthChecks
from proxy.visits import ProxyParts, Visits

log = logging.getLogger(__name__)

SWEEP_S = 0.2  # interval of the search for connections whose time is over
SWEEP_ON_S = 0.01  # pause before a sweep continues, if there are many
LAST_WORDS_S = 5.0  # time to record the requests that are cut off at the end


class ProxyApp:
    """The application, which `proxy.create_proxy` builds. A worker calls `start` and `stop`."""

    def __init__(self, settings: Settings, parts: ProxyParts) -> None:
        self.settings = settings
        self._parts = parts
        self._aside = Aside()
        self.crowd = Crowd(settings.proxy_connections, settings.max_waiting_per_address)
        self._all_done = asyncio.Event()
        self._maintenance = Repeated(self._maintain, lambda: settings.health_interval)
        self._metrics = Metrics(parts.balancer, self._gauges())
        self._audit = AuditLog(self._metrics.record)
        self._visits = Visits(settings, parts, self.crowd, self._aside, self._audit)
        self._sleepers = self._visits.sleepers
        self._health = HealthChecks(parts.balancer, settings.health_interval, self._admit_who_waits)
        self._repeated = (self._maintenance, self._health.rounds, self._sleepers.rounds)
        self._metrics_port = MetricsPort(settings, self._probe, self._metrics.registry)

    def _gauges(self) -> Gauges:
        waiting = "Requests that wait for a user row."
        starting = "Requests that wait for the first replica of their server."
        stale = "1 while the list of upstreams may be old, as its source cannot be reached."
        return {
            "hearth_proxy_in_flight": ("Requests served now.", lambda: len(self._visits.running)),
            "hearth_proxy_connections": ("Clients' connections.", lambda: len(self.crowd)),
            "hearth_proxy_waiting": (waiting, lambda: len(self._visits.forwarder.room)),
            "hearth_proxy_awaiting_start": (starting, lambda: len(self._visits.sleepers)),
            "hearth_proxy_upstreams_stale": (stale, lambda: int(self._parts.discovery.is_stale)),
        }

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sweep()
        self._parts.discovery.start(partial(self._loop.call_soon_threadsafe, self._take_list))
        for each in self._repeated:
            each.start()
        if self.settings.proxy_metrics_port:
            await self._metrics_port.start()

    async def stop(self) -> None:
        """Ends everything that still runs; after a complete drain no request does."""
        self._visits.is_draining = True
        for exchange in self._visits.running:
            exchange.abort(Outcome.DRAINED)
        if self._visits.running:
            self._all_done.clear()
            await asyncio.wait({asyncio.create_task(self._all_done.wait())}, timeout=LAST_WORDS_S)
        for member in self.crowd.members():
            member.evict()
        self._sweeping.cancel()
        self._metrics_port.stop()
        self._parts.discovery.stop()
        for each in self._repeated:
            each.stop()
        self._aside.close()
        self._parts.balancer.close()
        self._audit.flush()

    def request_reload(self) -> None:
        """Requests that changed files are read again and upstreams are checked, soon."""
        self._maintenance.request_run()
        self._health.rounds.request_run()

    async def drain(self) -> None:
        """Refuses new requests, and waits up to DRAIN_TIMEOUT until running ones have ended."""
        self._visits.is_draining = True
        ending_s = self._loop.time() + self.settings.drain_timeout
        if self._visits.running:
            drained = asyncio.create_task(self._all_done.wait())
            await asyncio.wait({drained}, timeout=self.settings.drain_timeout)
        # The ends of some answers may still wait here for slow readers.
        while self._loop.time() < ending_s and any(m.is_sending for m in self.crowd.members()):
            await asyncio.sleep(SWEEP_S)

    @property
    def is_draining(self) -> bool:
        return self._visits.is_draining

    def __call__(self) -> ClientConnection:
        """Returns the protocol of a new client, for the event loop's server."""
        return ClientConnection(self.crowd, self, self.settings)

    def begin(self, exchange: Exchange) -> None:
        self._visits.running.add(exchange)
        self._all_done.clear()
        exchange.start(self._answer(exchange))

    def refuse(self, error: ProxyError, *, is_recorded: bool = True) -> bytes:
        """Returns the answer to bytes that are no valid request."""
        record = AuditRecord(new_request_id(), "-", "-", status=error.status)
        record.outcome, record.reason = Outcome.REFUSED, error.reason[:256]
        if is_recorded:
            self._audit.write(record)
        return error.last_answer(record.request_id)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            if not self._answer_probe(exchange):
                await self._visits.serve(exchange)
        finally:
            exchange.end()
            self._visits.running.discard(exchange)
            if not self._visits.running:
                self._all_done.set()

    def _answer_probe(self, exchange: Exchange) -> bool:
        """Answers probes and allowed preflights, which need no token. Returns whether it did."""
        head = exchange.head
        is_asking = is_preflight(head)
        answer = self._probe(head.target) if head.method in ("GET", "HEAD") else None
        if not is_asking and answer is None:
            return False
        origin, allowed = head.fields.get("origin"), origins_for(head, self.settings.cors_origins)
        cors = cors_headers(origin, allowed)
        if answer is not None:
            status, content_type, body = answer
            exchange.answer(status, content_headers(content_type, body) + cors, body)
        elif is_allowed(origin, allowed):
            exchange.answer(204, cors + PREFLIGHT_HEADERS, b"")
        else:
            return False
        return True

    def _sweep(self) -> None:
        now_s = self._loop.time()
        has_more = self.crowd.sweep(now_s)
        self._metrics_port.crowd.sweep(now_s)
        self._visits.forwarder.sweep(now_s)
        if len(self._sleepers):  # requests that wait for their server to be listed
            self._maintenance.request_run()
        self._sweeping = self._loop.call_later(SWEEP_ON_S if has_more else SWEEP_S, self._sweep)

    def _take_list(self) -> None:
        self._parts.balancer.replace(self._parts.discovery.current)
        self._health.rounds.request_run()

    async def _maintain(self) -> None:
        """Read changed files again, and renew leases in Redis: work that blocks."""
        parts = self._parts
        for task in (*parts.refreshers, parts.discovery.refresh, parts.limits.renew):
            try:
                await self._aside.run(task)
            except Exception:
                # An error with one file must not stop the other tasks.
                log.exception("a maintenance task failed")

    def _admit_who_waits(self) -> None:
        """Wakes waiting requests, because upstreams may have free rows or have started."""
        self._visits.forwarder.room.admit()
        self._sleepers.look_again()

    def _probe(self, path: str) -> Answer | None:
        """Returns the answer for /health and /ready; None for any other path."""
        if path == "/health":
            is_alive = all(each.is_alive for each in self._repeated)
            status, body = (200, b"OK") if is_alive else (500, b"a part of the proxy has died")
            return status, "text/plain; charset=utf-8", body
        if path != "/ready":
            return None
        why_not = self._why_not_ready()
        body = json.dumps({"status": why_not or "ready"}).encode()
        return 503 if why_not else 200, "application/json", body

    def _why_not_ready(self) -> str | None:
        if self._visits.is_draining:
            return "draining"
        can_serve = self._parts.balancer.is_ready() or self._sleepers.has_any
        return None if can_serve else "no upstream is ready"
