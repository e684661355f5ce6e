"""Sends a request to an upstream and relays what comes back, byte for byte, as it comes.

Request threads only. A request is tried on another upstream only while it is certain that
nothing has processed it: the connection was refused, or the answer was 503, and in both cases
the whole body is still in hand.
"""

import http.client
from collections.abc import Iterator
from dataclasses import dataclass, field

from proxy.connections import PooledConnection
from proxy.errors import (
    ClientGone,
    Draining,
    Headers,
    ProxyError,
    StreamBroken,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.exchange import Exchange, Outcome
from proxy.headers import Identity, upstream_headers
from proxy.inbound import InboundRequest, RequestBody
from proxy.upstreams import Balancer, Upstream

RELAY_BYTES = 64 * 1024
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class _StaleConnection(Exception):
    """A kept-alive connection was closed under a request that may simply be sent again."""


@dataclass(slots=True)
class UpstreamReply:
    """An answer whose head has come. Request thread only; `close` exactly once."""

    upstream: Upstream
    connection: PooledConnection
    response: http.client.HTTPResponse
    exchange: Exchange
    balancer: Balancer
    can_reuse: bool = field(default=False, init=False)
    is_whole: bool = field(default=False, init=False)

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def reason(self) -> str:
        """The phrase of the status line, without what a status line may not hold."""
        return "".join(c for c in self.response.reason if c.isprintable()).strip() or "-"

    @property
    def is_chunked(self) -> bool:
        return bool(self.response.chunked)

    @property
    def is_stream(self) -> bool:
        """Whether the body has no known length, so that it may be long in coming."""
        return self.response.length is None

    @property
    def headers(self) -> Headers:
        return self.response.getheaders()

    def chunks(self) -> Iterator[bytes]:
        """The body, in the pieces in which it arrives. StreamBroken when it ends too soon.

        `read1` returns what is there, be it one token or 64 KiB, without waiting for more; it
        hands on compressed bodies as they are.
        """
        read1 = self.response.read1
        try:
            while chunk := read1(RELAY_BYTES):
                yield chunk
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._broken(repr(error)) from error
        if self.response.length:  # closed before Content-Length was reached
            raise self._broken(f"{self.response.length} bytes missing at the end")
        if self.exchange.abort_reason is not None:  # a close-delimited body looks complete
            raise self._broken("cut")
        self.is_whole = True

    def _broken(self, reason: str) -> StreamBroken:
        if self.exchange.abort_reason is None:
            self.balancer.report_failure(self.upstream)
        return StreamBroken(f"{self.upstream.name}: {reason}")

    def close(self) -> None:
        """Give the connection back if it can serve again; close it at once if not."""
        self.exchange.detach()
        self.balancer.finish(self.upstream)
        self.response.close()
        if self.is_whole and self.can_reuse:
            self.upstream.pool.release(self.connection)
        else:
            self.connection.client.close()


class Forwarder:
    """Opens replies. Any thread."""

    def __init__(self, balancer: Balancer, first_byte_timeout_s: float) -> None:
        self._balancer = balancer
        self._first_byte_timeout_s = first_byte_timeout_s

    def open(
        self, request: InboundRequest, identity: Identity, exchange: Exchange
    ) -> UpstreamReply:
        """Send the request and wait for the head of the answer.

        Raises UpstreamUnreachable, UpstreamBroken, UpstreamTimeout, ClientGone or Draining.
        """
        headers = upstream_headers(request.environ, identity)
        tried: set[Upstream] = set()
        unreachable: UpstreamUnreachable | None = None
        while True:
            try:
                upstream = self._balancer.choose(request.hints, tried)
            except UpstreamUnreachable as error:
                raise unreachable or error from None
            tried.add(upstream)
            try:
                reply = self._try(upstream, request, headers, exchange)
            except UpstreamUnreachable as error:
                unreachable = error
                continue
            may_retry = reply.status == 503 and request.body.is_complete
            if may_retry and self._balancer.has_alternative(request.hints, tried):
                reply.close()
                continue
            return reply

    def _try(
        self, upstream: Upstream, request: InboundRequest, headers: Headers, exchange: Exchange
    ) -> UpstreamReply:
        """One upstream: finish it here on failure, in the reply's `close` otherwise."""
        try:
            while True:
                connection = self._connect(upstream, exchange)
                try:
                    return self._converse(upstream, connection, request, headers, exchange)
                except _StaleConnection:
                    continue
        except UpstreamUnreachable:
            self._balancer.finish(upstream)
            self._balancer.report_failure(upstream, is_unreachable=True)
            raise
        except (UpstreamBroken, UpstreamTimeout):
            self._balancer.finish(upstream)
            self._balancer.report_failure(upstream)
            raise
        except BaseException:
            self._balancer.finish(upstream)
            raise

    def _connect(self, upstream: Upstream, exchange: Exchange) -> PooledConnection:
        try:
            connection = upstream.pool.acquire()
        except OSError as error:
            raise UpstreamUnreachable(f"{upstream.name}: {error}") from error
        exchange.attach(connection.socket)
        return connection

    def _converse(
        self,
        upstream: Upstream,
        connection: PooledConnection,
        request: InboundRequest,
        headers: Headers,
        exchange: Exchange,
    ) -> UpstreamReply:
        connection.socket.settimeout(self._first_byte_timeout_s)
        try:
            is_all_sent = _send(connection.client, upstream, request, headers)
            response = connection.client.getresponse()
            if response.status < 200:
                raise UpstreamBroken(f"{upstream.name}: unasked-for status {response.status}")
            if response.msg.defects:  # lines that are no headers, and whatever followed them
                raise UpstreamBroken(f"{upstream.name}: unreadable headers")
            connection.socket.settimeout(None)  # a token may take as long as it takes
            self._balancer.report_success(upstream)
            reply = UpstreamReply(upstream, connection, response, exchange, self._balancer)
            reply.can_reuse = is_all_sent and not response.will_close
            return reply
        except BaseException as error:
            exchange.detach()
            connection.client.close()
            if isinstance(error, ProxyError):
                raise
            if isinstance(error, (OSError, ValueError, http.client.HTTPException)):
                raise self._explain(error, upstream, connection, request, exchange) from error
            raise

    def _explain(
        self,
        error: Exception,
        upstream: Upstream,
        connection: PooledConnection,
        request: InboundRequest,
        exchange: Exchange,
    ) -> Exception:
        """What a failed conversation means, after its connection has been closed."""
        if exchange.abort_reason is Outcome.DRAINED:
            return Draining()
        if exchange.abort_reason is not None:
            return ClientGone()
        if isinstance(error, TimeoutError):
            return UpstreamTimeout(self._first_byte_timeout_s)
        is_closed = isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
        can_repeat = request.method in SAFE_METHODS and request.body.is_complete
        if is_closed and connection.is_reused and can_repeat:
            return _StaleConnection()
        return UpstreamBroken(f"{upstream.name}: {error!r}")


def _send(
    client: http.client.HTTPConnection,
    upstream: Upstream,
    request: InboundRequest,
    headers: Headers,
) -> bool:
    """Send head and body; False if the upstream stopped reading before the end."""
    target = request.target if request.target == "*" else upstream.spec.base_path + request.target
    client.putrequest(request.method, target, skip_host=True, skip_accept_encoding=True)
    client.putheader("Host", upstream.spec.netloc)
    for name, value in headers:
        client.putheader(name, value.encode("latin-1"))
    body = request.body
    is_chunked = not body.is_complete and body.length is None
    if is_chunked:
        client.putheader("Transfer-Encoding", "chunked")
    elif body.is_present:
        length = len(body.prefix) if body.is_complete else body.length
        client.putheader("Content-Length", str(length))
    payload = body.prefix if body.is_complete else _pieces(body)
    try:
        client.endheaders(payload or None, encode_chunked=is_chunked)
    except (BrokenPipeError, ConnectionResetError):
        # Its answer (413, say) may already lie in our receive buffer: read that next.
        return False
    return True


def _pieces(body: RequestBody) -> Iterator[bytes]:
    yield body.prefix
    yield from body.rest()
