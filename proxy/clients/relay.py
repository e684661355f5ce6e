"""Relays an answer from an upstream to a client: frames it anew and counts it, without delay.

Event loop only.
"""

from collections.abc import Callable
from dataclasses import dataclass

from common.connections.chunks import END_OF_CHUNKS, chunk
from proxy.audit import AuditRecord
from proxy.clients.answer_scan import EventEnd
from proxy.clients.client import ClientConnection
from proxy.clients.usage import UsageMeter

# Most bytes of an unfinished event that are held back. An event of usage is far shorter.
MAX_HELD_BYTES = 16 * 1024


@dataclass(slots=True)
class Relay:
    """Takes an answer's body. Sends the head with the first pieces, even if there are none."""

    client: ClientConnection
    record: AuditRecord
    head: bytes
    is_chunked: bool
    meter: UsageMeter | None
    hider: "UsageHider | None"  # leaves out the event of usage, if the client did not ask for it
    note_piece: Callable[[], None]

    def take(self, pieces: list[bytes], is_last: bool) -> None:
        out = [self.head]
        self.head = b""
        if pieces:
            pieces = self._count(pieces)
        if is_last and self.hider is not None:
            pieces = [*pieces, self.hider.rest()]
            self.record.bytes_out += len(pieces[-1])
        if self.is_chunked:
            out += [chunk(piece) for piece in pieces if piece]
        else:
            out += pieces
        if is_last and self.is_chunked:
            out.append(END_OF_CHUNKS)
        self.client.write(b"".join(out))

    def _count(self, pieces: list[bytes]) -> list[bytes]:
        """Counts the pieces. Returns the parts of them that the client gets."""
        record, meter, hider = self.record, self.meter, self.hider
        if record.ttft_ms is None:
            record.ttft_ms = record.elapsed_ms()
        self.note_piece()
        passed = []
        for piece in pieces:
            ends = meter.feed(piece) if meter is not None else []
            passed.append(piece if hider is None else hider.without_usage(piece, ends))
            record.bytes_out += len(passed[-1])
        return passed


@dataclass(slots=True)
class UsageHider:
    """Removes the event of usage from a stream of events."""

    meter: UsageMeter
    _pending: bytes = b""  # the part so far of an unfinished event
    _is_begun: bool = False  # the client has got a part of the unfinished event

    def without_usage(self, piece: bytes, ends: list[EventEnd]) -> bytes:
        """Returns the bytes that may pass now. `ends` are those of the events in the piece."""
        num_pending, data = len(self._pending), self._pending + piece
        passed, begin = [], 0
        for end in ends:
            if self._is_begun or not end.is_usage:
                passed.append(data[begin : num_pending + end.at])
            begin, self._is_begun = num_pending + end.at, False
        self._pending = data[begin:]
        if self.meter.is_between_events:
            passed.append(self.rest())
        elif len(self._pending) > MAX_HELD_BYTES:
            passed.append(self.rest())
            self._is_begun = True
        return b"".join(passed)

    def rest(self) -> bytes:
        """Returns the bytes that were held back, because they may pass now."""
        pending, self._pending = self._pending, b""
        return pending
