"""One request, from its head to its audit line. Event loop only."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.addresses import OF_AZURE
from common.connections.answers import answer_head, content_headers
from common.logs import new_request_id, request_id
from proxy.access.auth import Authenticator
from proxy.access.gate import Gate, origins_for
from proxy.access.limits import Admission, Admissions, TeamLimits
from proxy.access.login import LOGIN_PATH, LOGOUT_PATH, Page, login_page
from proxy.access.policy import NANOS, Policy, TeamPolicy, TokenPrice
from proxy.access.roles import Role, plain_path
from proxy.audit import AuditLog, AuditRecord, Outcome
from proxy.background import Aside
from proxy.clients.client import Exchange
from proxy.clients.crowd import Crowd
from proxy.clients.inbound import (
    NO_ROOM,
    BodyRoom,
    InboundRequest,
    is_json,
    num_inspected_bytes,
    read_hints,
    takes_row,
    target_fault,
)
from proxy.clients.model_list import LIST_PATH, MAX_LIST_BYTES, joined, model_of, read_list
from proxy.clients.origins import check_preflight, cors_headers
from proxy.clients.relay import Relay, UsageHider
from proxy.clients.usage import METERED_HEADERS, Usage, UsageMeter, estimated_usage
from proxy.errors import (
    BadRequest,
    ClientGone,
    Draining,
    Headers,
    ModelNotAllowed,
    Overloaded,
    ProxyError,
    StreamBroken,
    UpstreamBroken,
)
from proxy.settings import Settings
from proxy.upstreams.balancer import Balancer, Upstream
from proxy.upstreams.forward import SAFE_METHODS, Forwarder, Reply
from proxy.upstreams.headers import client_headers
from proxy.upstreams.sleepers import Sleepers
from proxy.upstreams.specs import Discovery

log = logging.getLogger(__name__)

# Anthropic's clients send telemetry here, which no upstream gets.
EVENTS_PATH = "/api/event_logging/"
# Requests beyond PROXY_REQUESTS, for operators.
RESERVED_REQUESTS = 16
# Other upstreams whose lists of models are joined to the first, and the time for each.
MAX_LISTS = 16
LIST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """The parts of a proxy, from its composition root. `refreshers` read files again that may have
    changed."""

    authenticator: Authenticator
    balancer: Balancer
    limits: TeamLimits
    policy: Callable[[], Policy]
    discovery: Discovery
    refreshers: Sequence[Callable[[], object]] = ()


@dataclass(slots=True)
class Visit:
    """The state of one request."""

    record: AuditRecord
    exchange: Exchange
    cors: Headers = field(default_factory=list)
    admission: Admission | None = None
    price: TokenPrice | None = None
    currency: str = ""
    meter: UsageMeter | None = None
    takes_row: bool = False
    num_prompt_bytes: int | None = None  # for an estimate
    has_begun_answer: bool = False


class Visits:
    """Serves requests. `_serve` has the steps of one, in order."""

    def __init__(
        self, settings: Settings, parts: ProxyParts, crowd: Crowd, aside: Aside, audit: AuditLog
    ) -> None:
        """The app uses `sleepers` and `forwarder`, too."""
        self._settings = settings
        self._parts = parts
        self._crowd = crowd
        self._audit = audit
        self._gate = Gate(parts.authenticator, parts.policy, aside)
        self._admissions = Admissions(parts.limits, aside)
        self._body_room = BodyRoom()
        self.sleepers = Sleepers(settings, parts.balancer, aside)
        self.forwarder = Forwarder(settings, parts.balancer, self.sleepers)
        self.running: set[Exchange] = set()
        self.is_draining = False

    async def serve(self, exchange: Exchange) -> None:
        head = exchange.head
        route = head.target.partition("?")[0][:256]  # the query may hold anything
        record = AuditRecord(new_request_id(), head.method, route)
        head.target = OF_AZURE.sub("/v1/", head.target)
        allowed = origins_for(head, self._settings.cors_origins)
        visit = Visit(record, exchange, cors_headers(head.fields.get("origin"), allowed))
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
        if self.is_draining:
            raise Draining
        head, body, record = visit.exchange.head, visit.exchange.body, visit.record
        if fault := target_fault(head.method, head.target):
            raise BadRequest(fault)
        path = plain_path(head.target)
        if head.method == "OPTIONS":
            check_preflight(head, origins_for(head, self._settings.cors_origins))
        if path in (LOGIN_PATH, LOGOUT_PATH):
            self._show(visit, await login_page(self._gate, head, body, path))
            return
        principal, role = await self._gate.let_in(record, head, path)
        self._check_room(role)
        if path.startswith(EVENTS_PATH):
            self._show(visit, Page(404, []))
            return
        policies = self._parts.policy()
        policy = policies.for_team(principal.team_id)
        if policy.has_limits:
            visit.admission = await self._admissions.admit(principal.team_id, policy)
        if not body.is_empty:
            room = self._body_room if is_json(head) else NO_ROOM
            await body.read_prefix(self._settings.max_content_length, room=room)
        visit.takes_row = takes_row(head.method, path)
        hints = read_hints(head, body, visit.takes_row)
        if visit.takes_row:
            visit.num_prompt_bytes = num_inspected_bytes(head, body)
        if head.method in SAFE_METHODS and (model := model_of(path)) != hints.model:
            hints = hints._replace(model=model)
        record.model = hints.model[:128] if hints.model else None
        visit.price, visit.currency = policies.price_of(hints.model), policies.currency
        if self._parts.balancer.route_of(hints):
            hints = hints.routed(principal.team_id, record.request_id)
        if visit.takes_row or path.startswith(LIST_PATH):
            route, mark, query = head.target.partition("?")
            head.target = route.rstrip("/") + mark + query  # some servers refuse a final slash
        caller = principal.team_id, principal.token_id, record.request_id
        request = InboundRequest(head, body, hints, *caller)
        _check_model(request, policy)
        reply = await self.forwarder.open(request)
        body.release()
        try:
            is_list = path == LIST_PATH and (head.method, reply.head.status) == ("GET", 200)
            upstreams = self._parts.balancer.with_other_models(reply.upstream) if is_list else []
            if upstreams or (is_list and policy.models is not None):
                more = [self._list_of(request, upstream) for upstream in upstreams[:MAX_LISTS]]
                await self._list(visit, reply, await asyncio.gather(*more), policy.models)
            else:
                await self._relay(visit, reply)
        finally:
            visit.exchange.set_source_reading = lambda _: None
            reply.close()
            record.replica_cents = reply.replica_cents

    async def _relay(self, visit: Visit, reply: Reply) -> None:
        record, client, head = visit.record, visit.exchange.client, reply.head
        added = self._begin(visit, reply)
        headers = client_headers(head.fields, added, head.is_chunked, reply.upstream.spec.url)
        if record.method == "POST" and head.status < 300:
            visit.meter = UsageMeter(*map(head.get, METERED_HEADERS))
        hider = None
        if reply.has_asked_usage and visit.meter is not None and visit.meter.is_editable:
            hider = UsageHider(visit.meter)
            headers = [each for each in headers if each[0].lower() != "content-length"]
        is_unframed = hider is not None or reply.has_unframed_body
        is_chunked = is_unframed and not visit.exchange.head.is_http_1_0
        if is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        closes = client.must_close()
        answer = answer_head(head.status, headers + visit.cors, closes=closes, phrase=head.reason)
        visit.has_begun_answer = True
        note_piece = reply.upstream.note_piece
        relay = Relay(client, record, answer, is_chunked, visit.meter, hider, note_piece)
        if client.is_congested:
            reply.set_reading(False)
        visit.exchange.set_source_reading = reply.set_reading
        try:
            await reply.connection.relay(relay.take)
        except StreamBroken as error:
            self._parts.balancer.report_failure(reply.upstream)
            record.outcome, record.reason = Outcome.UPSTREAM_BROKE, str(error)[:256]
            client.break_off()
        else:
            client.end_answer()

    async def _list_of(self, request: InboundRequest, upstream: Upstream) -> dict[str, Any] | None:
        """Returns an upstream's list of models; None if it cannot be had soon."""
        model = next(iter(upstream.spec.models), None)
        request = request._replace(hints=request.hints._replace(model=model))
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                reply = await self.forwarder.open(request, upstream)
                try:
                    return await _read_list(reply) if reply.head.status == 200 else None
                finally:
                    reply.close()
        except (ProxyError, TimeoutError):
            return None

    async def _list(
        self,
        visit: Visit,
        reply: Reply,
        more: Iterable[dict[str, Any] | None],
        models: Collection[str] | None,
    ) -> None:
        """Relays the joined lists of all upstreams' models, without those the team may not use."""
        record, head = visit.record, reply.head
        headers = self._begin(visit, reply) + visit.cors
        answers = [await _read_list(reply), *(each for each in more if each is not None)]
        shown = joined(answers, models)
        record.ttft_ms, record.bytes_out = record.elapsed_ms(), len(shown)
        headers += content_headers("application/json", shown)
        visit.exchange.answer(head.status, headers, shown, head.reason)

    def _begin(self, visit: Visit, reply: Reply) -> Headers:
        """Records the head of an answer. Returns the headers that the proxy adds to it."""
        record = visit.record
        record.upstream, record.status = reply.upstream.name, reply.head.status
        record.server = reply.upstream.spec.server or None
        record.queue_ms = record.elapsed_ms()
        limits = [] if visit.admission is None else visit.admission.headers
        return [("X-Request-Id", record.request_id), *limits]

    def _check_room(self, role: Role) -> None:
        """Raises Overloaded. Some places are reserved for operators, who may have to help."""
        num_places = self._settings.proxy_requests
        if role is Role.OPERATOR:
            num_places += RESERVED_REQUESTS
        elif self._crowd.is_full:
            raise Overloaded(f"{len(self._crowd)} connections; raise PROXY_CONNECTIONS")
        if len(self.running) > num_places:
            raise Overloaded(f"{len(self.running)} requests are running; raise PROXY_REQUESTS")

    def _refuse(self, visit: Visit, error: ProxyError) -> None:
        record = visit.record
        record.status, record.reason = error.status, error.reason[:256]
        record.outcome = Outcome.CLIENT_GONE if error.status == 499 else Outcome.REFUSED
        if visit.has_begun_answer or error.status == 499:
            visit.exchange.client.break_off()
            return
        headers, body = error.answer(record.request_id, visit.exchange.head.target, visit.cors)
        visit.exchange.answer(error.status, headers, body)

    def _show(self, visit: Visit, page: Page) -> None:
        record = visit.record
        record.status = page.status
        if page.reason is not None:
            record.outcome, record.reason = Outcome.REFUSED, page.reason[:256]
        headers = [*page.headers, ("Content-Length", str(len(page.body)))]
        headers += [("X-Request-Id", record.request_id), *visit.cors]
        visit.exchange.answer(page.status, headers, page.body)

    def _break_off(self, visit: Visit) -> None:
        """Ends an aborted exchange: its client has gone or stalled, or the drain is over."""
        outcome = visit.exchange.abort_reason or Outcome.DRAINED
        if outcome is Outcome.DRAINED and not visit.has_begun_answer:
            self._refuse(visit, Draining())
            return
        if not visit.has_begun_answer:
            self._refuse(visit, ClientGone("the client closed its connection"))
        visit.record.outcome = outcome
        visit.exchange.client.break_off()

    def _settle(self, visit: Visit) -> None:
        """Charges the team, and writes the audit line. Called exactly once per visit."""
        record = visit.record
        visit.exchange.body.release()
        record.bytes_in = visit.exchange.body.num_read_bytes
        num_tokens, cost_nanos = 0, 0
        if (usage := _usage(visit)) is not None:
            num_tokens = usage.total_tokens
            record.prompt_tokens = usage.prompt_tokens
            record.completion_tokens = usage.completion_tokens
            record.cached_tokens = usage.cached_tokens
            record.tokens_source = usage.source
            if visit.price is not None:
                cost_nanos = visit.price.cost_nanos(usage.prompt_tokens, usage.completion_tokens)
                record.cost, record.currency = cost_nanos / NANOS, visit.currency
        if visit.admission is not None:
            self._admissions.leave(visit.admission, num_tokens, cost_nanos)
        self._audit.write(record)


def _usage(visit: Visit) -> Usage | None:
    num_prompt_bytes = visit.num_prompt_bytes
    if visit.meter is not None:
        return visit.meter.usage(num_prompt_bytes)
    has_left = visit.exchange.abort_reason is Outcome.CLIENT_GONE and visit.record.queue_ms is None
    return estimated_usage(num_prompt_bytes) if has_left and num_prompt_bytes else None


async def _read_list(reply: Reply) -> dict[str, Any]:
    """Returns an answer's list of models. Raises UpstreamBroken."""
    try:
        answer = await reply.connection.read_whole(MAX_LIST_BYTES)
        return read_list(answer or b"", reply.head.get("content-encoding"))
    except (StreamBroken, ValueError) as error:
        raise UpstreamBroken(f"{reply.upstream.name}: {error}") from error


def _check_model(request: InboundRequest, policy: TeamPolicy) -> None:
    """Raises ModelNotAllowed if the team has a list of models, and the request names none of them
    in a way that can be read here."""
    model = request.hints.model
    if model is None and request.head.method in SAFE_METHODS:
        return
    if policy.models is not None and model not in policy.models:
        raise ModelNotAllowed(request.team_id, model)
