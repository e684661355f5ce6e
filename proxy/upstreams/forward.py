"""Sends a request to an upstream and returns the head of its answer. Event loop only.

A request is tried on another upstream if it is certain that none has processed it: the connection
was refused, or the answer was 503. A request that only asks for tokens, or has a safe method, is
also sent once more if its upstream closed the connection without a byte of an answer, as it does
when it crashes. In all cases the whole body is still in memory.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from httptools import HttpParserError

from common.connections.chunks import END_OF_CHUNKS, chunk
from proxy.clients.inbound import InboundRequest, asking_usage
from proxy.errors import (
    AllRowsBusy,
    Headers,
    ProxyError,
    UpstreamBroken,
    UpstreamClosed,
    UpstreamNotReady,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.settings import Settings
from proxy.upstreams.balancer import Balancer, Upstream
from proxy.upstreams.headers import upstream_headers
from proxy.upstreams.reply import ReplyHead, StaleConnection, UpstreamConnection
from proxy.upstreams.sleepers import Sleepers
from proxy.upstreams.waiting_room import WaitingRoom

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Statuses by which an upstream may refuse the question for usage, or for the client's own fault.
USAGE_REFUSALS = frozenset({400, 422})
RETRY_SHARE = 0.2
MAX_SAVED_RETRIES = 100.0


@dataclass(slots=True)
class Reply:
    """An answer whose head has come. Call `close` exactly once."""

    upstream: Upstream
    connection: UpstreamConnection
    head: ReplyHead
    forwarder: "Forwarder"
    upload: asyncio.Task[None] | None = None
    has_asked_usage: bool = False  # on the client's behalf
    is_stream: bool = field(init=False)
    is_held_back: bool = False
    begun_s: float = 0.0  # `Upstream.share` at the request's beginning
    replica_cents: float | None = None  # known once this is closed

    def __post_init__(self) -> None:
        self.is_stream = self.head.length is None and not self.connection.is_whole
        if self.is_stream:
            self.upstream.begin_stream()

    @property
    def has_unframed_body(self) -> bool:
        """Whether the length of the body is known only at its end."""
        return self.head.length is None and not self.connection.is_bodyless

    def set_reading(self, is_reading: bool) -> None:
        """Stops or resumes reading. A stream held back by its client does not count as stalled."""
        self.connection.set_reading(is_reading)
        if self.is_stream and self.is_held_back is is_reading:
            self.is_held_back = not is_reading
            self.upstream.begin_stream() if is_reading else self.upstream.end_stream()

    def close(self) -> None:
        """Gives the connection back if it can serve again, and closes it at once if not."""
        if (cents_per_hour := self.upstream.spec.cents_per_hour) is not None:
            share_s = self.upstream.share() - self.begun_s
            self.replica_cents = round(cents_per_hour * share_s / 3600, 9)
        if self.is_stream and not self.is_held_back:
            self.upstream.end_stream()
        if self.upload is not None and not _is_whole(self.upload):
            self.upload.cancel()
            self.connection.abort()
        else:
            self.upstream.pool.release(self.connection)
        self.forwarder.finish(self.upstream, had_row=self.head.status != 503)


@dataclass(slots=True)
class RetryBudget:
    """Each request earns a share of a retry, and each retry spends one, so that retries do not
    double an outage."""

    _saved: float = MAX_SAVED_RETRIES

    def note_request(self) -> None:
        self._saved = min(MAX_SAVED_RETRIES, self._saved + RETRY_SHARE)

    def try_spend(self) -> bool:
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class Forwarder:
    """Sends requests to upstreams, and opens their replies."""

    def __init__(self, settings: Settings, balancer: Balancer, sleepers: Sleepers) -> None:
        self._settings = settings
        self.balancer = balancer
        self._sleepers = sleepers
        self.room = WaitingRoom(balancer.choose, self.finish, balancer.line_of, settings.queue_size)
        self._retries = RetryBudget()
        # In the order of deadlines, because all answers have the same time limit.
        self._deadline_s: dict[UpstreamConnection, float] = {}

    def finish(self, upstream: Upstream, *, had_row: bool = True) -> None:
        """Ends a request. Its row, if it had one, goes to the next request that waits."""
        self.balancer.finish(upstream, had_row=had_row)
        if len(self.room):
            self.room.admit()

    async def open(self, request: InboundRequest, only: Upstream | None = None) -> Reply:
        """Does what `_open` does. If the upstream may have refused the question for usage, sends
        the request again without it. With `only`, no other upstream is asked."""
        reply = await self._open(request, only)
        if not reply.has_asked_usage or reply.head.status not in USAGE_REFUSALS:
            return reply
        reply.close()
        plain = request._replace(hints=request.hints._replace(may_ask_usage=False))
        again = await self._open(plain, only)
        if again.head.status < 300:
            reply.upstream.reports_usage = False
        return again

    async def _open(self, request: InboundRequest, only: Upstream | None) -> Reply:
        """Sends the request and waits for the head of the answer.

        Raises UpstreamUnreachable, UpstreamBroken, UpstreamTimeout, UpstreamNotReady, AllRowsBusy,
        ServerStarting, or the error of the connection that the body comes from.
        """
        head = upstream_headers(request)
        tried: set[Upstream] = set() if only is None else set(self.balancer.upstreams) - {only}
        unreachable: UpstreamUnreachable | None = None
        is_repeated = False
        self._retries.note_request()
        deadline_s = asyncio.get_running_loop().time() + self._settings.queue_timeout
        while True:
            try:
                upstream = await self._upstream(request, tried, deadline_s)
            except UpstreamUnreachable as error:
                raise unreachable or error from None
            try:
                reply = await self._try(upstream, request, head)
            except UpstreamUnreachable as error:
                tried.add(upstream)
                unreachable = error
                continue
            except UpstreamClosed:
                # At most once, because a request that crashes its server must not crash them all.
                if is_repeated or not self._may_be_repeated(request, upstream, tried):
                    raise
                is_repeated = True
                continue
            if reply.head.status == 503 and self._may_go_elsewhere(request, upstream, tried):
                reply.close()
                continue
            return reply

    async def _upstream(
        self, request: InboundRequest, tried: set[Upstream], deadline_s: float
    ) -> Upstream:
        """Returns an upstream with a row for the request. Waits for a row, or a server's start."""
        while True:
            try:
                upstream = self._free_upstream(request, tried)
                upstream = upstream or await self.room.enter(request, tried, deadline_s)
                if request.hints.takes_row:
                    self._sleepers.note_fallback(request.hints, upstream.spec.server)
                return upstream
            except (UpstreamNotReady, UpstreamUnreachable) as error:
                # After UpstreamNotReady it waits: a tried replica may go before the next is ready.
                is_refused = bool(tried) and isinstance(error, UpstreamUnreachable)
                if is_refused or not request.hints.takes_row:
                    raise
                if not await self._sleepers.wake(request.hints, deadline_s):
                    raise

    def _free_upstream(self, request: InboundRequest, tried: set[Upstream]) -> Upstream | None:
        """Returns an upstream; None if the request must wait for a row, or behind others."""
        if request.hints.takes_row and len(self.room):
            return None
        try:
            return self.balancer.choose(request.hints, tried)
        except AllRowsBusy:
            return None

    def _may_go_elsewhere(
        self, request: InboundRequest, upstream: Upstream, tried: set[Upstream]
    ) -> bool:
        """Returns whether to go on after a 503: to another upstream, or to wait for a row here."""
        if not request.body.is_complete:
            return False
        if request.hints.takes_row and self.balancer.report_full(upstream):
            return self._retries.try_spend()
        return self._may_try_another(request, upstream, tried)

    def _may_be_repeated(
        self, request: InboundRequest, upstream: Upstream, tried: set[Upstream]
    ) -> bool:
        """Returns whether another upstream may do again what this one may have begun. It must have
        the same `server`, because another server may charge for it."""
        changes_nothing = request.hints.takes_row or request.head.method in SAFE_METHODS
        if not (changes_nothing and request.body.is_complete):
            return False
        server = upstream.spec.server
        tried.update(each for each in self.balancer.upstreams if each.spec.server != server)
        return self._may_try_another(request, upstream, tried)

    def _may_try_another(
        self, request: InboundRequest, upstream: Upstream, tried: set[Upstream]
    ) -> bool:
        tried.add(upstream)
        has_alternative = self.balancer.has_alternative(request.hints, tried)
        return has_alternative and self._retries.try_spend()

    async def _try(self, upstream: Upstream, request: InboundRequest, fields: Headers) -> Reply:
        """Tries one upstream. On failure finishes the request; else the reply's `close` does."""
        begun_s = upstream.share()
        try:
            while True:
                connection = upstream.pool.take_idle() or await self._connect(upstream)
                try:
                    reply = await self._converse(upstream, connection, request, fields)
                    reply.begun_s = begun_s
                    return reply
                except StaleConnection as error:
                    upstream.pool.distrust(connection)
                    if request.head.method in SAFE_METHODS and request.body.is_complete:
                        continue
                    raise UpstreamClosed(f"{upstream.name}: {error!r}") from error
        except UpstreamUnreachable:
            self.balancer.report_failure(upstream, is_unreachable=True)
            self.finish(upstream)
            raise
        except (UpstreamBroken, UpstreamTimeout):
            self.balancer.report_failure(upstream)
            self.finish(upstream)
            raise
        except BaseException:
            self.finish(upstream)
            raise

    async def _connect(self, upstream: Upstream) -> UpstreamConnection:
        try:
            return await upstream.pool.connect()
        except (OSError, TimeoutError) as error:
            raise UpstreamUnreachable(f"{upstream.name}: {error!r}") from error

    async def _converse(
        self,
        upstream: Upstream,
        connection: UpstreamConnection,
        request: InboundRequest,
        fields: Headers,
    ) -> Reply:
        asks_usage = request.hints.may_ask_usage and upstream.reports_usage
        upload: asyncio.Task[None] | None = None
        try:
            data = _request_bytes(upstream, request, fields, asks_usage)
            is_whole = request.body.is_complete
            connection.begin(request.head.method, data, is_whole=is_whole)
            if not is_whole:
                upload = asyncio.create_task(self._upload(connection, request))
                await self._uploaded_or_answered(upload, connection)
            now_s = asyncio.get_running_loop().time()
            self._deadline_s[connection] = now_s + self._settings.first_byte_timeout
            head = await connection.answered()
            self.balancer.report_success(upstream)
            return Reply(upstream, connection, head, self, upload, asks_usage)
        except BaseException as error:
            if upload is not None:
                upload.cancel()
            connection.abort()
            if isinstance(error, UpstreamBroken):
                raise UpstreamBroken(f"{upstream.name}: {error.reason}") from error
            if isinstance(error, (ProxyError, StaleConnection)):
                raise
            if isinstance(error, (OSError, EOFError, ValueError, HttpParserError)):
                kind = UpstreamBroken if connection.has_answered else UpstreamClosed
                raise kind(f"{upstream.name}: {error!r}") from error
            raise
        finally:
            self._deadline_s.pop(connection, None)

    def sweep(self, now_s: float) -> None:
        """Gives up on answers whose first byte is late. Called a few times a second."""
        for connection, deadline_s in list(self._deadline_s.items()):
            if deadline_s > now_s:
                break
            connection.give_up(UpstreamTimeout(self._settings.first_byte_timeout))

    async def _upload(self, connection: UpstreamConnection, request: InboundRequest) -> None:
        is_chunked = request.body.length is None
        async for piece in request.body.rest(self._settings.max_content_length):
            await connection.send(chunk(piece) if is_chunked else piece)
        if is_chunked:
            await connection.send(END_OF_CHUNKS)
        connection.end_request()

    async def _uploaded_or_answered(
        self, upload: asyncio.Task[None], connection: UpstreamConnection
    ) -> None:
        """Waits for the upload's end, or for an earlier answer (413, say). Raises its error."""
        answer = connection.answered()
        try:
            either: set[asyncio.Future[Any]] = {upload, answer}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if upload.done():
                upload.result()
            elif answer.exception() is not None:
                upload.cancel()
        finally:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # counts as retrieved; `_converse` gets it again by `answered`


def _is_whole(upload: asyncio.Task[None]) -> bool:
    return upload.done() and not upload.cancelled() and upload.exception() is None


def _request_bytes(
    upstream: Upstream, request: InboundRequest, fields: Headers, asks_usage: bool
) -> bytes:
    """Returns the request's head, with the upstream's API key if it has one, and the received part
    of its body. `asks_usage` adds a question
    for usage to the body."""
    head, body = request.head, request.body
    target = head.target if head.target == "*" else upstream.base_path + head.target
    lines = [f"{head.method} {target} HTTP/1.1", f"Host: {upstream.host}"]
    if (key := upstream.key) is not None:
        fields = [*(each for each in fields if each[0].lower() != key[0].lower()), key]
    lines += [f"{name}: {value}" for name, value in fields]
    prefix = asking_usage(body.prefix) if asks_usage else body.prefix
    if body.is_complete:
        if body.is_chunked or body.length is not None:
            lines.append(f"Content-Length: {len(prefix)}")
    elif body.length is None:
        lines.append("Transfer-Encoding: chunked")
        prefix = chunk(prefix)
    else:
        lines.append(f"Content-Length: {body.length}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + prefix
