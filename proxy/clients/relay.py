"""An answer on its way from an upstream to a client: framed anew, counted, never held up.

Event loop only.
"""

from collections.abc import Callable

from proxy.audit import AuditRecord
from proxy.clients.answers import END_OF_CHUNKS, chunk
from proxy.clients.exchange import Client
from proxy.clients.usage import UsageMeter


class Relay:
    """Takes an answer's body. The head goes out with what is taken first, be it nothing."""

    __slots__ = ("_client", "_head", "_is_chunked", "_meter", "_note_piece", "_record")

    def __init__(
        self,
        client: Client,
        record: AuditRecord,
        head: bytes,
        *,
        is_chunked: bool,
        meter: UsageMeter | None,
        note_piece: Callable[[], None],
    ) -> None:
        self._client = client
        self._record = record
        self._head = head
        self._is_chunked = is_chunked
        self._meter = meter
        self._note_piece = note_piece

    def take(self, pieces: list[bytes], is_last: bool) -> None:
        out = [self._head]
        self._head = b""
        if pieces:
            self._count(pieces)
            out += map(chunk, pieces) if self._is_chunked else pieces
        if is_last and self._is_chunked:
            out.append(END_OF_CHUNKS)
        self._client.write(b"".join(out))

    def _count(self, pieces: list[bytes]) -> None:
        record = self._record
        if record.ttft_ms is None:
            record.ttft_ms = record.elapsed_ms()
        self._note_piece()
        for piece in pieces:
            record.bytes_out += len(piece)
            if self._meter is not None:
                self._meter.feed(piece)
