"""Reads streamed answers byte by byte, in the two formats that targets send.

An answer is fed with the body as it arrives, each piece with the time when it was read, and keeps
the texts with these times. It belongs to one request in the load process, and knows no HTTP.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, Protocol

from benchmarking.load.events import EventStream, EventTooLong

MAX_SHOWN_CHARS = 200


class AnswerFault(Exception):
    """The answer is faulty. `code` is as in `records.RequestError`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamReader(Protocol):
    chunk_s: list[float]  # a time for each event with text
    chunk_texts: list[str]
    usage: dict[str, Any] | None
    finish_reason: str | None

    def feed(self, data: bytes, now_s: float) -> None:
        """Take a piece of the body. Raises AnswerFault."""

    def finish(self) -> None:
        """Note that the body has ended, by HTTP's rules. Raises AnswerFault if it is incomplete."""


class ChatStream:
    """Server-sent events of an OpenAI-compatible chat completion, in the dialects of many servers.

    Only events with text count, even if they also have a finish reason or usage. Events with only a
    role or an empty text do not count, nor do pings and others that are not part of the answer.
    `model` is the model that answers, according to the server.
    """

    def __init__(self) -> None:
        self.model: str | None = None
        self.chunk_s: list[float] = []
        self.chunk_texts: list[str] = []
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._events = EventStream()
        self._is_done = False
        self._start: bytes | None = b""  # the beginning of the body, until its first event
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
        for content in (thought, delta.get("content")):
            if text := "".join(_texts(content)):
                self.chunk_s.append(now_s)
                # JSON may have half a surrogate pair, which cannot be encoded.
                self.chunk_texts.append(text.encode(errors="replace").decode())


class TextAnswer:
    """The plain text of Hearth's native routes, without usage and finish reason."""

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
        """Does nothing: plain text is never incomplete."""


def error_text(body: bytes, location: str = "") -> str:
    """Returns the message of an error in OpenAI's or Hearth's form, else the body. `location` is
    that of a redirect, which is not followed, because the key would be sent along."""
    if location:
        return _shown(f"redirects to {location}; give the address of the server itself")
    try:
        parsed = json.loads(body)
        return _message(parsed.get("error") or parsed)
    except (ValueError, AttributeError, RecursionError):
        return _shown(body.decode(errors="replace").strip()) or "no message"


def _error_in(name: str, event: dict[str, Any]) -> Any:
    """Returns the error of an event in any known format; None if it has none."""
    is_error = "error" in (name, event.get("object"), event.get("type"))
    return event.get("error") or (event if is_error else None)


def _message(error: Any) -> str:
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else None
    return _shown(str(message or error))


def _shown(message: str) -> str:
    """Returns a server's message, shortened and without control characters."""
    return "".join(c if c.isprintable() else " " for c in message[:MAX_SHOWN_CHARS])


def _texts(content: object) -> Iterator[str]:
    """Yields the texts of `content`, which is a string or a list of parts with text."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from _texts(part)
    elif isinstance(content, dict):
        yield from _texts(content.get("text") or content.get("thinking"))
    elif content is not None:
        raise TypeError("neither text nor parts of one")
