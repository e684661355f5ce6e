"""The application: one request from its head to its audit line.

`ProxyApp._serve` reads as the life of a request. Event loop only, but for what says otherwise.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from proxy.access.auth import Authenticator
from proxy.access.gate import Gate
from proxy.access.limits import Admission, TeamLimits
from proxy.access.login import LOGIN_PATH, LOGOUT_PATH, Login, Page
from proxy.access.policy import Policy, TeamPolicy
from proxy.access.roles import Role, plain_path
from proxy.aside import Aside
from proxy.audit import AuditLog, AuditRecord, Outcome
from proxy.clients.answers import answer_head, content_headers, refusal
from proxy.clients.client import ClientConnection, Patience
from proxy.clients.crowd import Crowd
from proxy.clients.exchange import Exchange
from proxy.clients.inbound import InboundRequest, read_hints, takes_row, target_fault
from proxy.clients.origins import (
    PREFLIGHT_HEADERS,
    check_preflight,
    cors_headers,
    is_allowed,
    is_preflight,
)
from proxy.clients.relay import Relay
from proxy.clients.usage import PROMPT_HEADER, Usage, UsageMeter, estimated_usage
from proxy.errors import (
    BadRequest,
    ClientGone,
    Draining,
    Headers,
    ModelNotAllowed,
    Overloaded,
    ProxyError,
    StreamBroken,
)
from proxy.logs import request_id
from proxy.metrics import Gauges, Metrics
from proxy.probes import ControlServer, Probes
from proxy.settings import Settings
from proxy.upstreams.balancer import Balancer
from proxy.upstreams.discovery import Discovery
from proxy.upstreams.forward import Forwarder, Reply
from proxy.upstreams.headers import Identity, client_headers
from proxy.upstreams.maintenance import Maintenance, check_health

log = logging.getLogger(__name__)

SWEEP_S = 0.2  # how often it is looked for those whose time is over
SWEEP_ON_S = 0.01  # and how soon for the rest of them, when they are many
LAST_WORDS_S = 5.0  # for what is cut at the end to be written down
# Beyond PROXY_REQUESTS, for operators.
RESERVED_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class Parts:
    """What the app is made of. `refreshers` re-read files that may have changed."""

    authenticator: Authenticator
    balancer: Balancer
    limits: TeamLimits
    policy: Callable[[], Policy]
    discovery: Discovery
    refreshers: Sequence[Callable[[], object]] = ()


@dataclass(slots=True)
class Visit:
    """What belongs to one request."""

    record: AuditRecord
    exchange: Exchange
    cors: Headers = field(default_factory=list)
    admission: Admission | None = None
    meter: UsageMeter | None = None
    has_begun_answer: bool = False


class ProxyApp:
    """Composed by `proxy.create_proxy`; `start` and `stop` frame its life in a worker."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._aside = Aside()
        self._gate = Gate(parts.authenticator, parts.policy, self._aside)
        self._login = Login(self._gate)
        self._forwarder = Forwarder(
            parts.balancer,
            settings.first_byte_timeout,
            settings.max_content_length,
            settings.queue_size,
            settings.queue_timeout,
        )
        self._patience = Patience(
            settings.head_timeout,
            settings.body_timeout,
            settings.min_body_rate,
            settings.keepalive_timeout,
            settings.client_timeout,
        )
        self.crowd = Crowd(settings.proxy_connections, settings.max_waiting_per_address)
        self._running: set[Exchange] = set()
        self._is_draining = False
        self._all_done = asyncio.Event()
        self._maintenance = Maintenance(
            [
                *parts.refreshers,
                self._discover,
                parts.limits.renew,
                partial(check_health, parts.balancer),
                self._admit_waiting,
            ],
            settings.health_interval,
        )
        self._metrics = Metrics(parts.balancer, self._gauges())
        self._audit = AuditLog(self._metrics.record)
        self._probes = Probes(lambda: self._maintenance.is_alive, self._why_not_ready)
        address = (settings.proxy_metrics_host, settings.proxy_metrics_port)
        self._control = ControlServer(
            address, settings.proxy_processes, self._probes, self._metrics.registry
        )

    def _gauges(self) -> Gauges:
        waiting = "Requests that wait for a user row."
        return {
            "hearth_proxy_in_flight": ("Requests served now.", lambda: len(self._running)),
            "hearth_proxy_connections": ("Clients' connections.", lambda: len(self.crowd)),
            "hearth_proxy_waiting": (waiting, lambda: len(self._forwarder.room)),
        }

    def start(self) -> None:
        """In the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._sweep()
        self._maintenance.start()
        if self._settings.proxy_metrics_port:
            self._control.start()

    async def stop(self) -> None:
        """Ends what still runs, which is nothing after a drain."""
        self._is_draining = True
        for exchange in self._running:
            exchange.abort(Outcome.DRAINED)
        if self._running:
            self._all_done.clear()
            await asyncio.wait({asyncio.create_task(self._all_done.wait())}, timeout=LAST_WORDS_S)
        for member in self.crowd.members():
            member.evict()
        self._sweeping.cancel()
        self._control.stop()
        self._maintenance.stop()
        self._aside.close()
        self._parts.balancer.close()
        self._audit.flush()

    def request_reload(self) -> None:
        """Read the changed files again, soon."""
        self._maintenance.request_run()

    async def drain(self) -> None:
        """Refuse new requests, let running ones end; what runs after DRAIN_TIMEOUT is cut."""
        self._is_draining = True
        ending_s = self._loop.time() + self._settings.drain_timeout
        if self._running:
            drained = asyncio.create_task(self._all_done.wait())
            await asyncio.wait({drained}, timeout=self._settings.drain_timeout)
        # The ends of answers may still wait here for slow readers.
        while self._loop.time() < ending_s and any(m.is_sending for m in self.crowd.members()):
            await asyncio.sleep(SWEEP_S)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def settings(self) -> Settings:
        return self._settings

    def __call__(self) -> ClientConnection:
        """A new client, for the event loop's server."""
        return ClientConnection(self.crowd, self, self._patience)

    def begin(self, exchange: Exchange) -> None:
        self._running.add(exchange)
        self._all_done.clear()
        exchange.start(self._answer(exchange))

    def refuse(self, error: ProxyError) -> bytes:
        """The answer to what is no request."""
        record = AuditRecord(_new_id(), "-", "-")
        record.status, record.reason = error.status, error.reason[:256]
        record.outcome = Outcome.REFUSED
        self._write_down(record)
        headers, body = refusal(error, [("X-Request-Id", record.request_id)])
        return answer_head(error.status, error.phrase, headers, closes=True) + body

    async def _answer(self, exchange: Exchange) -> None:
        try:
            if not self._answer_probe(exchange):
                await self._visit(exchange)
        finally:
            exchange.end()
            self._running.discard(exchange)
            if not self._running:
                self._all_done.set()

    def _answer_probe(self, exchange: Exchange) -> bool:
        """Answer what needs no token: probes, and preflights of allowed origins."""
        head = exchange.head
        origin, allowed = head.get("origin"), self._settings.cors_origins
        if is_preflight(head) and is_allowed(origin, allowed):
            cors = cors_headers(origin, allowed)
            self._send(exchange, 204, "No Content", cors + PREFLIGHT_HEADERS, b"")
            return True
        if head.method not in ("GET", "HEAD") or not (answer := self._probes.answer(head.target)):
            return False
        status, phrase, content_type, body = answer
        headers = content_headers(content_type, body) + cors_headers(origin, allowed)
        self._send(exchange, status, phrase, headers, body)
        return True

    async def _visit(self, exchange: Exchange) -> None:
        head = exchange.head
        record = AuditRecord(_new_id(), head.method, _route(head.target))
        cors = cors_headers(head.get("origin"), self._settings.cors_origins)
        visit = Visit(record, exchange, cors)
        request_id.set(record.request_id)
        try:
            await self._serve(visit)
        except ProxyError as error:
            self._refuse(visit, error)
        except asyncio.CancelledError:
            self._break_off(visit)
        except Exception:
            log.exception("request %s failed", record.request_id)
            self._refuse(visit, ProxyError("The proxy failed; its log says why."))
        finally:
            self._settle(visit)

    async def _serve(self, visit: Visit) -> None:
        if self._is_draining:
            raise Draining
        head, body, record = visit.exchange.head, visit.exchange.body, visit.record
        if fault := target_fault(head.method, head.target):
            raise BadRequest(fault)
        path = plain_path(head.target)
        check_preflight(head, self._settings.cors_origins)
        if path in (LOGIN_PATH, LOGOUT_PATH):
            self._show(visit, await self._login.answer(head, body, path))
            return
        principal, role = await self._gate.let_in(record, head, path)
        self._check_room(role)
        policy = self._parts.policy().for_team(principal.team_id)
        if self._parts.limits.may_block:
            await self._admit_aside(visit, principal.team_id, policy)
        else:
            visit.admission = self._parts.limits.admit(principal.team_id, policy)
        if body.is_present:
            await body.read_prefix(self._settings.max_content_length)
        hints = read_hints(head, body)
        record.model = hints.model[:128] if hints.model else None
        request = InboundRequest(head, body, hints, principal.team_id, takes_row(head.method, path))
        _check_model(request, policy)
        reply = await self._forwarder.open(request, Identity(principal, record.request_id))
        try:
            await self._relay(visit, reply)
        finally:
            visit.exchange.source = None
            reply.close()

    async def _relay(self, visit: Visit, reply: Reply) -> None:
        record, client, head = visit.record, visit.exchange.client, reply.head
        ours = [("X-Request-Id", record.request_id)]
        if visit.admission is not None:
            ours += visit.admission.headers
        headers = client_headers(head.fields, ours, head.is_chunked, reply.upstream.spec.url)
        record.upstream, record.status = reply.upstream.name, head.status
        record.queue_ms = record.elapsed_ms()
        if record.method == "POST" and head.status < 300:
            visit.meter = UsageMeter(head.get("content-type"), head.get(PROMPT_HEADER.lower()))
        is_chunked = reply.has_unframed_body and not visit.exchange.head.is_http_1_0
        if is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        closes = client.must_close()
        answer = answer_head(head.status, head.reason, headers + visit.cors, closes=closes)
        visit.has_begun_answer = True
        relay = Relay(
            client,
            record,
            answer,
            is_chunked=is_chunked,
            meter=visit.meter,
            note_piece=partial(self._parts.balancer.note_piece, reply.upstream),
        )
        if client.is_congested:
            reply.set_reading(False)
        visit.exchange.source = reply
        try:
            await reply.relay(relay)
        except StreamBroken as error:
            self._parts.balancer.report_failure(reply.upstream)
            record.outcome, record.reason = Outcome.UPSTREAM_BROKE, str(error)[:256]
            client.break_off()
        else:
            client.end_answer()

    def _check_room(self, role: Role) -> None:
        """Raises Overloaded. Some places are left for operators, who may have to see to it."""
        num_places = self._settings.proxy_requests
        if role is Role.OPERATOR:
            num_places += RESERVED_REQUESTS
        elif self.crowd.is_full:
            raise Overloaded(f"{len(self.crowd)} connections; raise PROXY_CONNECTIONS")
        if len(self._running) > num_places:
            raise Overloaded(f"{len(self._running)} requests are running; raise PROXY_REQUESTS")

    async def _admit_aside(self, visit: Visit, team_id: str, policy: TeamPolicy) -> None:
        """Raises LimitExceeded. A client that leaves meanwhile leaves no place taken behind."""
        limits = self._parts.limits
        admitting = asyncio.ensure_future(self._aside.run(limits.admit, team_id, policy))
        try:
            visit.admission = await asyncio.shield(admitting)
        except asyncio.CancelledError:
            admitting.add_done_callback(self._leave_again)
            raise

    def _leave_again(self, admitting: "asyncio.Future[Admission]") -> None:
        if not admitting.cancelled() and admitting.exception() is None:
            self._leave(admitting.result(), 0)

    def _leave(self, admission: Admission, num_tokens: int) -> None:
        limits = self._parts.limits

        def leave() -> None:
            limits.leave(admission)
            limits.charge(admission, num_tokens)

        if limits.may_block:
            self._aside.run_later(leave)
        else:
            leave()

    def _refuse(self, visit: Visit, error: ProxyError) -> None:
        record = visit.record
        record.status, record.reason = error.status, error.reason[:256]
        record.outcome = Outcome.CLIENT_GONE if error.status == 499 else Outcome.REFUSED
        if visit.has_begun_answer or error.status == 499:
            visit.exchange.client.break_off()
            return
        headers, body = refusal(error, self._ours(visit))
        self._send(visit.exchange, error.status, error.phrase, headers, body)

    def _show(self, visit: Visit, page: Page) -> None:
        record = visit.record
        record.status = page.status
        if page.reason is not None:
            record.outcome, record.reason = Outcome.REFUSED, page.reason[:256]
        headers = [*page.headers, ("Content-Length", str(len(page.body))), *self._ours(visit)]
        self._send(visit.exchange, page.status, page.phrase, headers, page.body)

    def _break_off(self, visit: Visit) -> None:
        """The exchange was aborted: its client has gone or stalled, or the drain is over."""
        outcome = visit.exchange.abort_reason or Outcome.DRAINED
        if outcome is Outcome.DRAINED and not visit.has_begun_answer:
            self._refuse(visit, Draining())
            return
        if not visit.has_begun_answer:
            self._refuse(visit, ClientGone())
        visit.record.outcome = outcome
        visit.exchange.client.break_off()

    def _send(
        self, exchange: Exchange, status: int, phrase: str, headers: Headers, body: bytes
    ) -> None:
        """An answer of the proxy's own, whole. After an odd request nothing else is believed."""
        client = exchange.client
        closes = client.must_close(is_last=status == 400)
        head = answer_head(status, phrase, headers, closes=closes)
        client.write(head if exchange.head.method == "HEAD" else head + body)
        client.end_answer()

    def _ours(self, visit: Visit) -> Headers:
        return [("X-Request-Id", visit.record.request_id), *visit.cors]

    def _settle(self, visit: Visit) -> None:
        """Exactly once per visit: charge, and write down what happened."""
        record = visit.record
        record.bytes_in = visit.exchange.body.num_read_bytes
        usage = _usage(visit)
        if usage is not None:
            record.prompt_tokens = usage.prompt_tokens
            record.completion_tokens = usage.completion_tokens
            record.tokens_source = usage.source
        if visit.admission is not None:
            self._leave(visit.admission, usage.total_tokens if usage is not None else 0)
        self._write_down(record)

    def _write_down(self, record: AuditRecord) -> None:
        record.end()
        self._audit.write(record)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        has_more = self.crowd.sweep(now_s)
        self._forwarder.sweep(now_s)
        self._sweeping = self._loop.call_later(SWEEP_ON_S if has_more else SWEEP_S, self._sweep)

    def _discover(self) -> None:
        """Maintenance thread."""
        specs = self._parts.discovery.changed()
        if specs is not None:
            self._loop.call_soon_threadsafe(self._parts.balancer.replace, specs)

    def _admit_waiting(self) -> None:
        """Maintenance thread, after the health checks: rows may have come free."""
        self._loop.call_soon_threadsafe(self._forwarder.room.admit)

    def _why_not_ready(self) -> str | None:
        """Any thread."""
        if self._is_draining:
            return "draining"
        return None if self._parts.balancer.is_ready() else "no upstream is ready"


def _usage(visit: Visit) -> Usage | None:
    if visit.meter is not None:
        return visit.meter.usage()
    exchange = visit.exchange
    has_left = exchange.abort_reason is Outcome.CLIENT_GONE and visit.record.queue_ms is None
    if has_left and visit.record.method == "POST" and exchange.body.prefix:
        return estimated_usage(exchange.body.prefix)
    return None


def _check_model(request: InboundRequest, policy: TeamPolicy) -> None:
    """A team with a list of models must name one of them, in a body that can be read here."""
    if policy.models is None or request.head.method in ("GET", "HEAD", "OPTIONS"):
        return
    if request.hints.model not in policy.models:
        raise ModelNotAllowed(request.team_id, request.hints.model)


def _new_id() -> str:
    """A request's; it has to be unique and need not be a secret."""
    return f"{random.getrandbits(128):032x}"


def _route(target: str) -> str:
    """The path without its query, which may hold anything: for records."""
    return target.partition("?")[0][:256]
