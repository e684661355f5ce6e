"""The WSGI application: one request from its first byte to its audit line.

`ProxyApp._serve` reads as the life of a request. Request threads only, but for the life-cycle
methods, which belong to the worker's main thread.
"""

import logging
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from proxy.access import plain_path
from proxy.audit import AuditRecord
from proxy.auth import Authenticator
from proxy.errors import (
    BadRequest,
    Draining,
    Headers,
    ModelNotAllowed,
    Overloaded,
    ProxyError,
    StreamBroken,
)
from proxy.exchange import Exchange, Outcome, RunningExchanges
from proxy.forward import Forwarder, UpstreamReply
from proxy.gate import Gate
from proxy.headers import Identity, client_headers
from proxy.heads import PendingHeads
from proxy.inbound import Environ, InboundRequest, RequestBody, read_hints, target_fault
from proxy.limits import Admission, TeamLimits
from proxy.login import LOGIN_PATH, LOGOUT_PATH, Login, Page
from proxy.logs import request_id
from proxy.maintenance import Maintenance, check_health
from proxy.metrics import Metrics
from proxy.origins import (
    PREFLIGHT_HEADERS,
    check_preflight,
    cors_headers,
    is_allowed,
    is_preflight,
)
from proxy.policy import Policy, TeamPolicy
from proxy.probes import ControlServer, Probes, head
from proxy.settings import Settings
from proxy.upstreams import Balancer
from proxy.usage import PROMPT_HEADER, Usage, UsageMeter, estimated_usage
from proxy.watcher import Watcher, probe_silent_peer

log = logging.getLogger(__name__)

StartResponse = Callable[..., Callable[[bytes], object]]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the app is made of. `refreshers` re-read files that may have changed."""

    authenticator: Authenticator
    balancer: Balancer
    limits: TeamLimits
    policy: Callable[[], Policy]
    refreshers: Sequence[Callable[[], object]] = ()


@dataclass(slots=True)
class Visit:
    """What belongs to one request. Request thread only, but for what `exchange` allows."""

    record: AuditRecord
    exchange: Exchange
    is_http_1_0: bool = False
    cors: Headers = field(default_factory=list)
    body: RequestBody | None = None
    admission: Admission | None = None
    meter: UsageMeter | None = None


class ProxyApp:
    """Composed by `proxy.create_proxy`; `start` and `stop` frame its life in a worker."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._gate = Gate(parts.authenticator, parts.policy)
        self._login = Login(self._gate, settings.client_timeout)
        self._forwarder = Forwarder(parts.balancer, settings.first_byte_timeout)
        self._running = RunningExchanges()
        self.heads = PendingHeads(settings.client_timeout)
        self._watcher = Watcher(self._running, self.heads, settings.client_timeout)
        self._maintenance = Maintenance(
            [*parts.refreshers, parts.limits.renew, partial(check_health, parts.balancer)],
            settings.health_interval,
        )
        self._metrics = Metrics(parts.balancer, lambda: len(self._running))
        self._probes = Probes(self._is_alive, self._why_not_ready)
        address = (settings.proxy_metrics_host, settings.proxy_metrics_port)
        self._control = ControlServer(address, self._probes, self._metrics.registry)

    def start(self) -> None:
        self._watcher.start()
        self._maintenance.start()
        if self._settings.proxy_metrics_port:
            self._control.start()

    def stop(self) -> None:
        """Ends what still runs, which is nothing after a drain."""
        for exchange in self._running.snapshot():
            exchange.abort(Outcome.DRAINED)
        self._control.stop()
        self._maintenance.stop()
        self._watcher.stop()
        self._parts.balancer.close()

    def request_reload(self) -> None:
        """From a signal handler: read the changed files again, soon."""
        self._maintenance.request_run()

    def begin_drain(self, on_drained: Callable[[], None]) -> None:
        """From a signal handler: refuse new requests, let running ones end, then call back."""
        self._watcher.begin_drain(self._settings.drain_timeout, on_drained)

    def greet(self, client: socket.socket) -> None:
        """Prepare a new connection."""
        probe_silent_peer(client, self._settings.client_timeout)

    def must_close(self, method: str, target: str) -> bool:
        """Whether the answer to this request has to be its connection's last."""
        return self._watcher.is_draining or target_fault(method, target) is not None

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        origin, allowed = environ.get("HTTP_ORIGIN"), self._settings.cors_origins
        cors = cors_headers(origin, allowed)
        if is_preflight(environ) and is_allowed(origin, allowed):
            start_response("204 No Content", cors + PREFLIGHT_HEADERS)
            return []
        if environ["REQUEST_METHOD"] in ("GET", "HEAD") and (
            answer := self._probes.answer(environ["RAW_URI"])
        ):
            status, content_type, body = answer
            start_response(status, head(content_type, body) + cors)
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
        visit = Visit(
            AuditRecord(secrets.token_hex(16), environ["REQUEST_METHOD"], _route(environ)),
            Exchange(environ.get("gunicorn.socket")),
            is_http_1_0=environ["SERVER_PROTOCOL"] == "HTTP/1.0",
            cors=cors,
        )
        request_id.set(visit.record.request_id)
        self._running.add(visit.exchange)
        try:
            return self._serve(visit, environ, start_response)
        except ProxyError as error:
            return self._refuse(visit, error, start_response)
        except Exception:
            log.exception("request %s failed", visit.record.request_id)
            failure = ProxyError("The proxy failed; its log says why.")
            return self._refuse(visit, failure, start_response)

    def _serve(
        self, visit: Visit, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        if self._watcher.is_draining:
            raise Draining
        if len(self._running) > self._settings.proxy_threads:
            raise Overloaded(self._settings.proxy_threads)
        record = visit.record
        target = str(environ["RAW_URI"])
        if fault := target_fault(record.method, target):
            raise BadRequest(fault)
        path = plain_path(target)
        check_preflight(environ, self._settings.cors_origins)
        if path in (LOGIN_PATH, LOGOUT_PATH):
            return self._answer(visit, self._login.answer(environ, path), start_response)
        principal = self._gate.let_in(record, environ, path)
        policy = self._parts.policy().for_team(principal.team_id)
        visit.admission = self._parts.limits.admit(principal.team_id, policy)
        visit.body = RequestBody(
            environ, self._settings.max_content_length, self._settings.client_timeout
        )
        hints = read_hints(target, environ, visit.body)
        record.model = hints.model[:128] if hints.model else None
        request = InboundRequest(record.method, target, environ, visit.body, hints)
        _check_model(request, principal.team_id, policy)
        self._watcher.watch(visit.exchange)
        identity = Identity(principal, record.request_id)
        reply = self._forwarder.open(request, identity, visit.exchange)
        try:
            return self._relay(visit, reply, start_response)
        except BaseException:
            reply.close()
            raise

    def _relay(
        self, visit: Visit, reply: UpstreamReply, start_response: StartResponse
    ) -> Iterable[bytes]:
        record = visit.record
        ours = [("X-Request-Id", record.request_id)]
        if visit.admission is not None:
            ours += visit.admission.headers
        url = reply.upstream.spec.url
        headers = client_headers(reply.headers, ours, reply.is_chunked, url) + visit.cors
        record.upstream, record.status = reply.upstream.name, reply.status
        record.queue_ms = record.elapsed_ms()
        if record.method == "POST" and reply.status < 300:
            told = reply.response.headers
            visit.meter = UsageMeter(told.get("Content-Type", ""), told.get(PROMPT_HEADER, ""))
        start_response(f"{reply.status} {reply.reason}", headers)
        return RelayedBody(visit, reply, self._end)

    def _refuse(
        self, visit: Visit, error: ProxyError, start_response: StartResponse
    ) -> list[bytes]:
        record = visit.record
        record.status, record.reason = error.status, error.reason[:256]
        record.outcome = Outcome.CLIENT_GONE if error.status == 499 else Outcome.REFUSED
        body = error.body()
        headers = head("application/json", body) + error.headers
        return self._send(visit, f"{error.status} {error.phrase}", headers, body, start_response)

    def _answer(self, visit: Visit, page: Page, start_response: StartResponse) -> list[bytes]:
        record = visit.record
        record.status = page.status
        if page.reason is not None:
            record.outcome, record.reason = Outcome.REFUSED, page.reason[:256]
        headers = [*page.headers, ("Content-Length", str(len(page.body)))]
        return self._send(visit, f"{page.status} {page.phrase}", headers, page.body, start_response)

    def _send(
        self,
        visit: Visit,
        status: str,
        headers: Headers,
        body: bytes,
        start_response: StartResponse,
    ) -> list[bytes]:
        """An answer of the proxy's own, whole."""
        self._end(visit)
        ours = [("X-Request-Id", visit.record.request_id), *visit.cors]
        # With exc_info a response that was begun and not yet sent may be replaced (PEP 3333).
        start_response(status, headers + ours, sys.exc_info())
        return [] if visit.record.method == "HEAD" else [body]

    def _end(self, visit: Visit) -> None:
        """Exactly once per visit: settle, and write down what happened."""
        self._watcher.unwatch(visit.exchange)
        self._running.discard(visit.exchange)
        record = visit.record
        if visit.body is not None:
            record.bytes_in = visit.body.num_read_bytes
        usage = _usage(visit)
        if usage is not None:
            record.prompt_tokens = usage.prompt_tokens
            record.completion_tokens = usage.completion_tokens
            record.tokens_source = usage.source
        if visit.admission is not None:
            self._parts.limits.leave(visit.admission)
            if usage is not None:
                self._parts.limits.charge(visit.admission, usage.total_tokens)
        record.total_ms = record.elapsed_ms()
        record.write()
        self._metrics.record(record)

    def _is_alive(self) -> bool:
        return self._watcher.is_alive and self._maintenance.is_alive

    def _why_not_ready(self) -> str | None:
        if self._watcher.is_draining:
            return "draining"
        return None if self._parts.balancer.is_ready() else "no upstream is ready"


class RelayedBody:
    """The iterable gunicorn writes from. `close` is called however the response ends."""

    def __init__(self, visit: Visit, reply: UpstreamReply, on_end: Callable[[Visit], None]) -> None:
        self._visit = visit
        self._reply = reply
        self._on_end = on_end

    def __iter__(self) -> Iterator[bytes]:
        record, exchange, meter = self._visit.record, self._visit.exchange, self._visit.meter
        try:
            if self._reply.is_stream:
                yield b""  # its head goes out now, not with its first token
            for chunk in self._reply.chunks():
                if record.ttft_ms is None:
                    record.ttft_ms = record.elapsed_ms()
                record.bytes_out += len(chunk)
                if meter is not None:
                    meter.feed(chunk)
                exchange.write_begins()
                yield chunk
                exchange.write_ends()
        except StreamBroken as error:
            record.reason = error.reason
            raise

    def close(self) -> None:
        if not self._reply.is_whole:
            self._visit.record.outcome = self._how_it_broke()
        self._reply.close()
        self._on_end(self._visit)
        if not self._reply.is_whole and self._visit.is_http_1_0:
            # Such a body may end with its connection, so only a reset tells it is cut short.
            self._visit.exchange.reset_client()

    def _how_it_broke(self) -> Outcome:
        if self._visit.exchange.abort_reason is not None:
            return self._visit.exchange.abort_reason
        if self._visit.record.reason is not None:
            return Outcome.UPSTREAM_BROKE
        return Outcome.CLIENT_GONE  # a write to the client failed


def _usage(visit: Visit) -> Usage | None:
    if visit.meter is not None:
        return visit.meter.usage()
    has_left = visit.exchange.abort_reason is Outcome.CLIENT_GONE and visit.record.queue_ms is None
    if has_left and visit.record.method == "POST" and visit.body is not None:
        return estimated_usage(visit.body.prefix)
    return None


def _check_model(request: InboundRequest, team_id: str, policy: TeamPolicy) -> None:
    """A team with a list of models must name one of them, in a body that can be read here."""
    if policy.models is None or request.method in ("GET", "HEAD", "OPTIONS"):
        return
    if request.hints.model not in policy.models:
        raise ModelNotAllowed(team_id, request.hints.model)


def _route(environ: Environ) -> str:
    """The path without its query, which may hold anything: for records."""
    return str(environ["RAW_URI"]).partition("?")[0][:256]
