"""Readers of a streamed answer, byte by byte, in the two forms that targets send.

An answer is fed the body as it arrives, each piece with the time it was read, and remembers the
text with those times. It belongs to one request in the load process. Knows nothing of HTTP.
"""

import codecs
import json
from typing import Any, Protocol

MAX_SHOWN_CHARS = 200


class AnswerFault(Exception):
    """The stream is not what was asked for. `code` as in `records.RequestError`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Answer(Protocol):
    chunk_s: list[float]  # one for each event that carried text
    chunk_texts: list[str]
    usage: dict[str, Any] | None
    finish_reason: str | None

    def feed(self, data: bytes, now_s: float) -> None:
        """A piece of the body. Raises AnswerFault."""

    def finish(self) -> None:
        """The body ended as HTTP says it should. Raises AnswerFault when something is missing."""


class ChatAnswer:
    """Server-sent events of an OpenAI-compatible chat completion.

    Only text counts as an event, wherever it stands: beside a finish reason or usage too. Events
    with a role or an empty text do not. `model` is who answers, by the server's word.
    """

    def __init__(self) -> None:
        self.model: str | None = None
        self.chunk_s: list[float] = []
        self.chunk_texts: list[str] = []
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._is_done = False
        self._pending = b""

    def feed(self, data: bytes, now_s: float) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now_s)

    def finish(self) -> None:
        if not self._is_done and self.finish_reason is None:
            raise AnswerFault("protocol", "the stream ended without a finish reason or [DONE]")

    def _take(self, payload: bytes, now_s: float) -> None:
        if payload == b"[DONE]":
            self._is_done = True
            return
        try:
            event = json.loads(payload)
            if error := event.get("error"):
                raise AnswerFault("server", _message(error))
            self._read(event, now_s)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            shown = payload.decode(errors="replace")[:MAX_SHOWN_CHARS]
            raise AnswerFault("protocol", f"not an event of a chat completion: {shown}") from None

    def _read(self, event: dict[str, Any], now_s: float) -> None:
        self.model = event.get("model", self.model)
        usage = event.get("usage")
        if usage:
            self.usage = dict(usage)
        if not event["choices"] and usage:
            return
        choice = event["choices"][0]
        delta = choice["delta"]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        # Some servers tell a thought under both names.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        for text in (thought, delta.get("content")):
            if text:
                self.chunk_s.append(now_s)
                self.chunk_texts.append("" + text)


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
        """Bare text ends where it ends."""


def error_text(body: bytes) -> str:
    """The message of an error answer: OpenAI's and Hearth's form, else the body itself."""
    try:
        parsed = json.loads(body)
        return _message(parsed.get("error") or parsed)
    except (ValueError, AttributeError):
        return body.decode(errors="replace")[:MAX_SHOWN_CHARS].strip() or "no message"


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)[:MAX_SHOWN_CHARS]
