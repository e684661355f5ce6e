"""Relays an answer from an upstream to a client: frames it anew and counts it, without delay.

Event loop only.
"""

from collections.abc import Callable

from common.connections.chunks import END_OF_CHUNKS, chunk
from proxy.audit import AuditRecord
from proxy.clients.answer_scan import EventEnd
from proxy.clients.client import ClientConnection
from proxy.clients.usage import UsageMeter

# Most bytes of an unfinished event that are held back. An event of usage is far shorter.
MAX_HELD_BYTES = 16 * 1024


class Relay:
    """Takes an answer's body. Sends the head with the first pieces, even if there are none."""

    def __init__(
        self,
        client: ClientConnection,
        record: AuditRecord,
        head: bytes,
        *,
        is_chunked: bool,
        meter: UsageMeter | None,
        hides_usage: bool,
        note_piece: Callable[[], None],
    ) -> None:
        """`hides_usage`: the event of usage is left out, because the client did not ask for it."""
        self._client = client
        self._record = record
        self._head = head
        self._is_chunked = is_chunked
        self._meter = meter
        self._hider = UsageHider(meter) if meter is not None and hides_usage else None
        self._note_piece = note_piece

    def take(self, pieces: list[bytes], is_last: bool) -> None:
        out = [self._head]
        self._head = b""
        if pieces:
            pieces = self._count(pieces)
        if is_last and self._hider is not None:
            pieces = [*pieces, self._hider.rest()]
            self._record.bytes_out += len(pieces[-1])
        if self._is_chunked:
            out += [chunk(piece) for piece in pieces if piece]
        else:
            out += pieces
        if is_last and self._is_chunked:
            out.append(END_OF_CHUNKS)
        self._client.write(b"".join(out))

    def _count(self, pieces: list[bytes]) -> list[bytes]:
        """Counts the pieces. Returns the parts of them that the client gets."""
        record = self._record
        if record.ttft_ms is None:
            record.ttft_ms = record.elapsed_ms()
        self._note_piece()
        passed = []
        for piece in pieces:
            ends = self._meter.feed(piece) if self._meter is not None else []
            passed.append(piece if self._hider is None else self._hider.without_usage(piece, ends))
            record.bytes_out += len(passed[-1])
        return passed


class UsageHider:
    """Removes the event of usage from a stream of events."""

    def __init__(self, meter: UsageMeter) -> None:
        self._meter = meter
        self._pending = b""  # the part so far of an unfinished event
        self._is_begun = False  # the client has got a part of the unfinished event

    def without_usage(self, piece: bytes, ends: list[EventEnd]) -> bytes:
        """Returns the bytes that may pass now. `ends` are those of the events in the piece."""
        num_pending, data = len(self._pending), self._pending + piece
        passed, begin = [], 0
        for end in ends:
            if self._is_begun or not end.is_usage:
                passed.append(data[begin : num_pending + end.at])
            begin, self._is_begun = num_pending + end.at, False
        self._pending = data[begin:]
        if self._meter.is_between_events:
            passed.append(self.rest())
        elif len(self._pending) > MAX_HELD_BYTES:
            passed.append(self.rest())
            self._is_begun = True
        return b"".join(passed)

    def rest(self) -> bytes:
        """Returns the bytes that were held back, because they may pass now."""
        pending, self._pending = self._pending, b""
        return pending
