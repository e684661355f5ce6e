"""One conversation with an upstream: sends a request, and passes on the answer as it comes.

httptools' parser interprets the answer. It does not know the request, so this module decides that a
body ends with its connection, or that an answer to HEAD has none. Event loop only.
"""

import asyncio
import select
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools
from httptools import HttpParserError, HttpParserUpgrade

from common.connections.sockets import polling
from proxy.errors import Headers, StreamBroken, UpstreamBroken

MAX_HEAD_BYTES = 64 * 1024
MAX_UNSENT_BYTES = 64 * 1024
BODYLESS = frozenset({204, 304})


@dataclass(slots=True)
class ReplyHead:
    status: int = 0
    reason: str = "-"
    fields: Headers = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)  # keys: names in lower case
    is_chunked: bool = False
    length: int | None = None  # bytes of the body; None: not known before its end

    def get(self, name: str) -> str:
        """Returns the value of a name in lower case; empty if there is none."""
        return self.values.get(name, "")


Take = Callable[[list[bytes], bool], None]
"""Takes the pieces of an answer's body that came at one time, in order, and whether they are the
last."""


class StaleConnection(Exception):
    """A kept-alive connection was closed before a byte of the answer."""


class UpstreamConnection(asyncio.Protocol):
    """A connection to an upstream, for one conversation after another."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpResponseParser | None = None  # None: between conversations
        self._has_room: asyncio.Event | None = None  # for more of a request's body; None: always
        self._head_waiter: asyncio.Future[ReplyHead] | None = None
        self.is_reused = False
        self.has_answered = False  # a byte of the answer has come
        self.idle_since_s = 0.0
        self.was_chunked = False  # the last answer was
        self.head: ReplyHead | None = None
        self._error: Exception | None = None
        self._poll: select.poll | None = None

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self.is_whole:
            self._can_go_on = False
            self._transport.abort()  # the bytes answer no request
            return
        self.has_answered = True
        if self.head is None:
            self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.give_up(UpstreamBroken("unasked-for change of protocol"))
        except HttpParserError as error:
            # Bytes after the end of a body are dropped, together with the connection.
            if self.is_whole:
                self._can_go_on = False
            else:
                self.give_up(error.__context__ or error)
        if self.head is None and self._num_head_bytes > MAX_HEAD_BYTES:
            self.give_up(UpstreamBroken(f"a head of more than {MAX_HEAD_BYTES} bytes"))
        self._hand_over()

    def eof_received(self) -> None:
        self._close_delimited_end()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._parser is None or self.is_whole:
            self._can_go_on = False
        elif exc is None and self._close_delimited_end():
            pass
        elif not self.has_answered:
            self.give_up(StaleConnection() if self.is_reused else exc or EOFError("closed"))
        else:
            self.give_up(exc or EOFError("closed before the end of its answer"))
        self._can_go_on = False
        self.resume_writing()

    def pause_writing(self) -> None:
        self._has_room = asyncio.Event()

    def resume_writing(self) -> None:
        if self._has_room is not None:
            self._has_room.set()

    # Users of the connection call these.

    def begin(self, method: str, data: bytes, *, is_whole: bool = True) -> None:
        """Sends the head of a request, and the part of its body that has come."""
        self._is_asked = is_whole
        self._parser = httptools.HttpResponseParser(self)
        self._method = method
        self.head = None
        self.is_whole = False
        self._phrase = b""
        self._pieces: list[bytes] = []
        self._take: Take | None = None
        self._ended: asyncio.Future[None] | None = None
        # A new connection may have been closed before its first use. No call would report that.
        self._error = EOFError("closed") if self._transport.is_closing() else None
        self.has_answered = False
        self.is_bodyless = False
        self._can_go_on = True
        self._num_head_bytes = 0
        self._fields: Headers = []
        self._transport.write(data)

    async def send(self, data: bytes) -> None:
        """Sends more of the request's body. Returns when there is room for more."""
        if not self._transport.is_closing():
            self._transport.write(data)
        if self._has_room is not None:
            await self._has_room.wait()

    def end_request(self) -> None:
        """Called when the whole request body has been sent."""
        self._is_asked = True

    # The next two are no coroutines, because each costs noticeable time for a small answer.

    def answered(self) -> asyncio.Future[ReplyHead]:
        """Returns a future of the answer's head. It raises the error of the connection."""
        self._head_waiter = self._loop.create_future()
        self._settle_head()
        return self._head_waiter

    def relay(self, take: Take) -> asyncio.Future[None]:
        """Passes on the body as it comes. The future raises StreamBroken if it ends too soon."""
        ended: asyncio.Future[None] = self._loop.create_future()
        self._take = take
        pieces, self._pieces = self._pieces, []
        take(pieces, self.is_whole)
        self._ended = ended
        self._settle_end()
        return ended

    async def read_whole(self, max_bytes: int) -> bytes | None:
        """Returns the whole body; None if it is longer. Raises StreamBroken if it ends too soon."""
        body = bytearray()

        def take(pieces: list[bytes], is_last: bool) -> None:
            body.extend(b"".join(pieces))
            if len(body) > max_bytes and not is_last:
                self.give_up(UpstreamBroken(f"over {max_bytes} bytes"))

        try:
            await self.relay(take)
        except StreamBroken:
            if len(body) <= max_bytes:
                raise
        return bytes(body) if len(body) <= max_bytes else None

    def set_reading(self, is_reading: bool) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading() if is_reading else self._transport.pause_reading()

    @property
    def can_be_reused(self) -> bool:
        return self.is_whole and self._can_go_on and not self._transport.is_closing()

    @property
    def is_silent(self) -> bool:
        """Whether the connection is open, and its socket holds no unrequested bytes."""
        if self._transport.is_closing():
            return False
        if self._poll is None:
            self._poll = polling(self._transport.get_extra_info("socket"))
        return not self._poll.poll(0)

    def rest(self) -> None:
        """Prepares the connection for its next conversation."""
        self._parser = self._take = self._head_waiter = self._ended = None
        self._pieces = []
        self._transport.resume_reading()  # paused if the last client was slow
        self.is_reused = True
        self.idle_since_s = self._loop.time()

    def abort(self) -> None:
        self._parser = self._take = None
        self._transport.abort()

    # httptools calls these.

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise UpstreamBroken("an answer that nobody asked for")
        self._is_early = not self._is_asked or self._transport.get_write_buffer_size() > 0

    def on_status(self, phrase: bytes) -> None:
        self._phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is not None:  # a trailer
            return
        self._fields.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status == 101 or status < 100:
            raise UpstreamBroken(f"unasked-for status {status}")
        if status < 200:
            return
        if self._num_head_bytes > MAX_HEAD_BYTES and (
            sum(len(name) + len(value) for name, value in self._fields) > MAX_HEAD_BYTES
        ):
            raise UpstreamBroken(f"a head of more than {MAX_HEAD_BYTES} bytes")
        values: dict[str, str] = {}
        for name, value in self._fields:
            key = name.lower()
            values[key] = f"{values[key]},{value}" if key in values else value
        length = values.get("content-length")
        phrase = self._phrase.decode("latin-1")
        if not phrase.isprintable():
            phrase = "".join(filter(str.isprintable, phrase))
        head = ReplyHead(
            status,
            phrase.strip() or "-",
            self._fields,
            values,
            is_chunked=values.get("transfer-encoding", "").strip().lower() == "chunked",
            length=None if length is None else int(length),
        )
        self.is_bodyless = self._method == "HEAD" or status in BODYLESS
        says_close = "close" in values.get("connection", "").lower()
        self._can_go_on = self._parser.should_keep_alive() or (self.is_bodyless and not says_close)
        if self._is_early:
            self._can_go_on = False  # the rest of this request might be read as another one
        self.head = head
        self.was_chunked = head.is_chunked
        if self.is_bodyless:
            self.is_whole = True

    def on_body(self, piece: bytes) -> None:
        if self.is_bodyless:
            self._can_go_on = False  # more of this forbidden body may follow
        else:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.head is None:  # an interim answer, such as 100 Continue
            self._fields, self._phrase = [], b""
        else:
            self.is_whole = True

    def _close_delimited_end(self) -> bool:
        """Returns whether the connection's end is the body's. If so, completes the answer."""
        head = self.head
        if head is None or head.is_chunked or head.length is not None or self._error is not None:
            return False
        if not self.is_whole:
            self.is_whole = True
            self._can_go_on = False
            self._hand_over()
        return True

    def _hand_over(self) -> None:
        """Passes on what has come to those who wait for it."""
        self._settle_head()
        if self._take is None:
            return
        if self._pieces or self.is_whole:
            pieces, self._pieces = self._pieces, []
            self._take(pieces, self.is_whole)
        self._settle_end()

    def _settle_head(self) -> None:
        if self._head_waiter is None or self._head_waiter.done():
            return
        if self._error is not None:
            self._head_waiter.set_exception(self._error)
        elif self.head is not None:
            self._head_waiter.set_result(self.head)

    def _settle_end(self) -> None:
        if self._ended is None or self._ended.done():
            return
        if self._error is not None:
            self._ended.set_exception(StreamBroken(repr(self._error)))
        elif self.is_whole:
            self._ended.set_result(None)

    def give_up(self, error: BaseException) -> None:
        """Aborts the connection. The waiting reader gets this error instead of the answer."""
        if self._error is None:
            self._error = error if isinstance(error, Exception) else EOFError(repr(error))
        self._can_go_on = False
        if not self._transport.is_closing():
            self._transport.abort()
        self._hand_over()
