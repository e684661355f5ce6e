"""The WSGI application: one request from its first byte to its audit line.

`ProxyApp.__call__` reads as the life of a request. Request threads only, but for the life-cycle
methods, which belong to the worker's main thread.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from proxy.audit import AuditRecord
from proxy.auth import Authenticator
from proxy.errors import Draining, Headers, ProxyError, StreamBroken
from proxy.exchange import Exchange, Outcome, RunningExchanges
from proxy.forward import Forwarder, UpstreamReply
from proxy.headers import Identity, client_headers
from proxy.inbound import Environ, InboundRequest, RequestBody, check_target, read_hints
from proxy.maintenance import Maintenance, check_health
from proxy.settings import Settings
from proxy.upstreams import Balancer
from proxy.watcher import Watcher

log = logging.getLogger(__name__)

StartResponse = Callable[..., Callable[[bytes], object]]


class ProxyApp:
    """Composed by `proxy.create_proxy`; `start` and `stop` frame its life in a worker."""

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        balancer: Balancer,
        refreshers: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._settings = settings
        self._authenticator = authenticator
        self._balancer = balancer
        self._forwarder = Forwarder(balancer, settings.first_byte_timeout)
        self._running = RunningExchanges()
        self._watcher = Watcher(self._running, settings.client_timeout)
        self._maintenance = Maintenance(
            [*refreshers, partial(check_health, balancer)], settings.health_interval
        )

    def start(self) -> None:
        self._watcher.start()
        self._maintenance.start()

    def stop(self) -> None:
        self._maintenance.stop()
        self._watcher.stop()
        self._balancer.close()

    def request_reload(self) -> None:
        """From a signal handler: read the changed files again, soon."""
        self._maintenance.request_run()

    def begin_drain(self, on_drained: Callable[[], None]) -> None:
        """From a signal handler: refuse new requests, let running ones end, then call back."""
        self._watcher.begin_drain(self._settings.drain_timeout, on_drained)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        record = AuditRecord(
            request_id=secrets.token_hex(16),
            method=environ["REQUEST_METHOD"],
            route=environ["RAW_URI"].partition("?")[0][:256],
        )
        exchange = Exchange(environ.get("gunicorn.socket"))
        self._running.add(exchange)
        try:
            return self._answer(environ, start_response, record, exchange)
        except ProxyError as error:
            self._end(exchange)
            return self._refuse(error, start_response, record)
        except BaseException:
            self._end(exchange)
            raise

    def _answer(
        self,
        environ: Environ,
        start_response: StartResponse,
        record: AuditRecord,
        exchange: Exchange,
    ) -> Iterable[bytes]:
        if self._watcher.is_draining:
            raise Draining
        target = check_target(environ)
        principal = self._authenticator.authenticate(environ.get("HTTP_AUTHORIZATION"))
        record.team_id, record.token_id = principal.team_id, principal.token_id
        body = RequestBody(
            environ, self._settings.max_content_length, self._settings.client_timeout
        )
        hints = read_hints(target, environ, body)
        record.model = hints.model
        request = InboundRequest(environ["REQUEST_METHOD"], target, environ, body, hints)
        self._watcher.watch(exchange)
        reply = self._forwarder.open(request, Identity(principal, record.request_id), exchange)
        try:
            return self._relay(reply, start_response, record, exchange)
        except BaseException:
            reply.close()
            raise

    def _relay(
        self,
        reply: UpstreamReply,
        start_response: StartResponse,
        record: AuditRecord,
        exchange: Exchange,
    ) -> Iterable[bytes]:
        headers = client_headers(reply.headers, [("X-Request-Id", record.request_id)])
        record.upstream, record.status = reply.upstream.name, reply.status
        record.queue_ms = record.elapsed_ms()
        write = start_response(f"{reply.status} {reply.response.reason}".strip(), headers)
        if reply.response.length is None:
            write(b"")  # a stream's head goes out now, not with its first token
        return RelayedBody(self, reply, record, exchange)

    def finish(self, exchange: Exchange, record: AuditRecord) -> None:
        self._end(exchange)
        record.total_ms = record.elapsed_ms()
        record.write()

    def _end(self, exchange: Exchange) -> None:
        self._watcher.unwatch(exchange)
        self._running.discard(exchange)

    def _refuse(
        self, error: ProxyError, start_response: StartResponse, record: AuditRecord
    ) -> list[bytes]:
        record.status, record.reason = error.status, error.reason
        record.outcome = Outcome.CLIENT_GONE if error.status == 499 else Outcome.REFUSED
        record.total_ms = record.elapsed_ms()
        record.write()
        body = error.body()
        headers: Headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("X-Request-Id", record.request_id),
            *error.headers,
        ]
        start_response(f"{error.status} {error.phrase}", headers)
        return [body]


class RelayedBody:
    """The iterable gunicorn writes from. `close` is called however the response ends."""

    def __init__(
        self, app: ProxyApp, reply: UpstreamReply, record: AuditRecord, exchange: Exchange
    ) -> None:
        self._app = app
        self._reply = reply
        self._record = record
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        record, exchange = self._record, self._exchange
        try:
            for chunk in self._reply.chunks():
                if record.ttft_ms is None:
                    record.ttft_ms = record.elapsed_ms()
                record.bytes_out += len(chunk)
                exchange.write_begins()
                yield chunk
                exchange.write_ends()
        except StreamBroken as error:
            record.reason = error.reason
            raise

    def close(self) -> None:
        if not self._reply.is_whole:
            self._record.outcome = self._how_it_broke()
        self._reply.close()
        self._app.finish(self._exchange, self._record)

    def _how_it_broke(self) -> Outcome:
        if self._exchange.abort_reason is not None:
            return self._exchange.abort_reason
        if self._record.reason is not None:
            return Outcome.UPSTREAM_BROKE
        return Outcome.CLIENT_GONE  # a write to the client failed
