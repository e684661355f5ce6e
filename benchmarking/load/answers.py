"""Reads streamed answers byte by byte, in the two formats that targets send.

An answer is fed the body as it arrives, each piece with the time it was read, and remembers the
text with those times. It belongs to one request in the load process. Knows nothing of HTTP.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, Protocol

from benchmarking.load.events import EventStream, EventTooLong

MAX_SHOWN_CHARS = 200


class AnswerFault(Exception):
    """The stream is not what was asked for. `code` as in `records.RequestError`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamReader(Protocol):
    chunk_s: list[float]  # one for each event that carried text
    chunk_texts: list[str]
    usage: dict[str, Any] | None
    finish_reason: str | None

    def feed(self, data: bytes, now_s: float) -> None:
        """A piece of the body. Raises AnswerFault."""

    def finish(self) -> None:
        """The body ended as HTTP says it should. Raises AnswerFault if something is missing."""


class ChatStream:
    """Server-sent events of an OpenAI-compatible chat completion, in the dialects of many servers.

    Only text counts as an event, wherever it stands: beside a finish reason or usage too. Events
    with a role or an empty text do not, nor do pings and others that say nothing of the answer.
    `model` is who answers, by the server's word.
    """

    def __init__(self) -> None:
        self.model: str | None = None
        self.chunk_s: list[float] = []
        self.chunk_texts: list[str] = []
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._events = EventStream()
        self._is_done = False
        self._start: bytes | None = b""  # beginning of a body until its first event
        self._now_s = 0.0

    def feed(self, data: bytes, now_s: float) -> None:
        self._now_s = now_s
        if self._start is not None:
            self._start = (self._start + data)[: 4 * MAX_SHOWN_CHARS]
        try:
            for name, payload in self._events.feed(data):
                self._take(name, payload, now_s)
        except EventTooLong as error:
            raise AnswerFault("protocol", str(error)) from None

    def finish(self) -> None:
        for name, payload in self._events.finish():
            self._take(name, payload, self._now_s)
        if self._start:
            raise AnswerFault("protocol", f"no stream of events: {error_text(self._start)}")
        if not self._is_done and self.finish_reason is None:
            raise AnswerFault("protocol", "the stream ended without a finish reason or [DONE]")

    def _take(self, name: str, payload: str, now_s: float) -> None:
        self._start = None
        if name == "ping" or not payload.strip():
            return
        if payload.strip() == "[DONE]":
            self._is_done = True
            return
        try:
            event = json.loads(payload)
            if error := _error_in(name, event):
                raise AnswerFault("server", _message(error))
            self._read(event, now_s)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise AnswerFault(
                "protocol", f"not an event of a chat completion: {_shown(payload)}"
            ) from None

    def _read(self, event: dict[str, Any], now_s: float) -> None:
        self.model = event.get("model", self.model)
        if isinstance(usage := event.get("usage"), dict) and usage:
            self.usage = usage
        if not (choices := event.get("choices")):
            return
        choice = choices[0]
        if reason := choice.get("finish_reason"):
            self.finish_reason = _shown(str(reason))
        delta = choice.get("delta") or {}
        # Some servers send a thought under both names.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        for said in (thought, delta.get("content")):
            if text := "".join(_texts(said)):
                self.chunk_s.append(now_s)
                # Half a surrogate pair, which JSON allows, is no text that can be kept.
                self.chunk_texts.append(text.encode(errors="replace").decode())


class TextAnswer:
    """The bare text of Hearth's native routes. It brings no usage and no finish reason."""

    def __init__(self) -> None:
        self.chunk_s: list[float] = []
        self.chunk_texts: list[str] = []
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, now_s: float) -> None:
        if text := self._decoder.decode(data):
            self.chunk_s.append(now_s)
            self.chunk_texts.append(text)

    def finish(self) -> None:
        """Bare text is never incomplete."""


def error_text(body: bytes, location: str = "") -> str:
    """The message of an error answer: OpenAI's and Hearth's form, else the body itself. `location`:
    of a redirect. Nobody follows one, as a key would go along."""
    if location:
        return _shown(f"redirects to {location}; give the address of the server itself")
    try:
        parsed = json.loads(body)
        return _message(parsed.get("error") or parsed)
    except (ValueError, AttributeError, RecursionError):
        return _shown(body.decode(errors="replace").strip()) or "no message"


def _error_in(name: str, event: dict[str, Any]) -> Any:
    """Returns the error in an event, in whichever format; None if there is none."""
    is_error = "error" in (name, event.get("object"), event.get("type"))
    return event.get("error") or (event if is_error else None)


def _message(error: Any) -> str:
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else None
    return _shown(str(message or error))


def _shown(said: str) -> str:
    """Returns a server's message, shortened and without control characters."""
    return "".join(c if c.isprintable() else " " for c in said[:MAX_SHOWN_CHARS])


def _texts(said: object) -> Iterator[str]:
    """The text of `content`: a string, or parts that each have some."""
    if isinstance(said, str):
        yield said
    elif isinstance(said, list):
        for part in said:
            yield from _texts(part)
    elif isinstance(said, dict):
        yield from _texts(said.get("text") or said.get("thinking"))
    elif said is not None:
        raise TypeError("neither text nor parts of one")
