"""Counts the tokens of an answer while it passes through, without holding it back.

The usage that an answer reports is believed, wherever it stands. A stream that was not asked for
it, or that ended early, reports none. Then its tokens are estimated: those of the prompt from the
bytes of the request, those of the answer from the bytes of its text.
"""

import re
from typing import NamedTuple

from proxy.clients.answer_scan import (
    ENCODINGS,
    EventEnd,
    EventReader,
    Inflater,
    JsonScan,
    Tally,
    parse_whole,
)

# Headers that a meter needs. The last is Hearth's own: the number of the prompt's tokens.
METERED_HEADERS = ("content-type", "content-encoding", "x-prompt-tokens")
# An estimate: English has about four bytes per token; JSON and other scripts differ.
BYTES_PER_TOKEN = 4
_NUMBER = re.compile(r"[0-9]{1,9}")


class Usage(NamedTuple):
    """`source` is "usage" if the upstream reported all counts, else "estimated". `cached_tokens` is
    the part of the prompt that came from a prefix cache, if the upstream reports it."""

    prompt_tokens: int
    completion_tokens: int
    source: str
    cached_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class UsageMeter:
    """Counts the tokens of one answer, from every piece of it. Event loop only."""

    def __init__(self, content_type: str, encoding: str = "", prompt_tokens: str = "") -> None:
        """Takes the values of METERED_HEADERS, which are empty if an answer lacks them."""
        kind = content_type.partition(";")[0].strip().lower()
        encoding = encoding.strip().lower()
        self._prompt_tokens = int(prompt_tokens) if _NUMBER.fullmatch(prompt_tokens) else None
        self._tally = Tally()
        self._inflater = Inflater() if encoding in ENCODINGS else None
        is_readable = self._inflater is not None or encoding in ("", "identity")
        self._is_document = is_readable and "json" in kind
        self._document: JsonScan | None = None  # reads JSON that comes in several pieces
        is_events = is_readable and kind == "text/event-stream"
        self._events = EventReader(self._tally) if is_events else None
        self._num_pieces = 0  # pieces of raw text
        self._is_damaged = False

    @property
    def is_editable(self) -> bool:
        """Whether the answer is a stream of events without compression."""
        return self._events is not None and self._inflater is None

    @property
    def is_between_events(self) -> bool:
        return self._events is None or self._events.is_between_events

    def feed(self, piece: bytes) -> list[EventEnd]:
        """Returns the ends of the events in a piece; none if it is compressed."""
        if self._inflater is None:
            return self._read(piece)
        try:
            for part in () if self._is_damaged else self._inflater.feed(piece):
                self._read(part)
        except ValueError:
            self._is_damaged = True
        return []

    def _read(self, piece: bytes) -> list[EventEnd]:
        if self._events is not None:
            return self._events.feed(piece)
        if self._is_document:
            if self._document is None and not parse_whole(piece, self._tally):
                self._document = JsonScan(self._tally)
            if self._document is not None:
                self._document.feed(piece)
        else:
            self._num_pieces += 1
            self._tally.text_bytes += len(piece)
        return []

    def usage(self, num_prompt_bytes: int | None) -> Usage | None:
        """Returns the usage of a finished answer. Without `num_prompt_bytes` it estimates nothing,
        and returns None if the answer has reported no usage."""
        if self._events is not None:
            self._events.finish()
        prompt, completion = self._reported()
        cached = self._tally.cached
        if cached is not None:
            cached = min(cached, prompt or 0)
        if num_prompt_bytes is None:
            is_reported = prompt is not None or completion is not None
            return Usage(prompt or 0, completion or 0, "usage", cached) if is_reported else None
        if prompt is None:
            prompt = self._prompt_tokens
        is_open = completion is None or self._tally.is_stale
        estimate = self._estimate() if is_open else 0
        source = "estimated" if prompt is None or estimate else "usage"
        if prompt is None:
            prompt = num_prompt_bytes // BYTES_PER_TOKEN
        return Usage(prompt, max(completion or 0, estimate), source, cached)

    def _reported(self) -> tuple[int | None, int | None]:
        """Returns the reported tokens of prompt and answer; embeddings report a total instead."""
        prompt, completion, total = self._tally.prompt, self._tally.completion, self._tally.total
        if total is not None:
            prompt = max(0, total - (completion or 0)) if prompt is None else prompt
            completion = max(0, total - prompt) if completion is None else completion
        return prompt, completion

    def _estimate(self) -> int:
        """Returns the estimated tokens of the text. Some servers send several tokens at once."""
        num_pieces = self._num_pieces if self._events is None else self._events.num_texts
        if num_pieces and self._prompt_tokens is not None:
            return num_pieces
        return max(num_pieces, -(-self._tally.num_bytes // BYTES_PER_TOKEN))


def estimated_usage(num_prompt_bytes: int) -> Usage:
    """Estimates the usage of a request whose client left before the first byte. The upstream works
    on its prompt all the same, but had no chance to report its length."""
    return Usage(num_prompt_bytes // BYTES_PER_TOKEN, 0, "estimated")
