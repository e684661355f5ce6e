"""One request on its way through the proxy. Event loop only."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from common.connections.answers import answer_head
from proxy.audit import Outcome
from proxy.clients.inbound import RequestBody
from proxy.clients.request_head import RequestHead
from proxy.errors import Headers


class Client(Protocol):
    """The client's connection, as an exchange uses it."""

    def must_close(self, *, is_last: bool = False) -> bool:
        """Returns whether the connection closes after the answer that is about to begin."""

    def write(self, data: bytes) -> None: ...

    def end_answer(self) -> None:
        """Called when the whole answer has been written."""

    def break_off(self) -> None:
        """Ends an answer that stays incomplete, in a way that the client notices."""

    @property
    def is_congested(self) -> bool: ...


class Source(Protocol):
    """The upstream side of an answer, which is held back while the client does not read."""

    def set_reading(self, is_reading: bool) -> None: ...


class Exchange:
    """A request, its client and, while an answer is relayed, the source of the answer."""

    def __init__(self, head: RequestHead, body: RequestBody, client: Client) -> None:
        self.head, self.body, self.client = head, body, client
        self.abort_reason: Outcome | None = None
        self.source: Source | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def abort(self, reason: Outcome) -> None:
        """Cancels the work. Only the first reason counts."""
        if self.abort_reason is None and self._task is not None:
            self.abort_reason = reason
            # Later, because a task that is cancelled before its first step leaves no audit line.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def answer(self, status: int, headers: Headers, body: bytes, phrase: str = "") -> None:
        """Sends a whole answer. After a 400 the connection closes, because the bytes that follow a
        malformed request cannot be trusted."""
        closes = self.client.must_close(is_last=status == 400)
        head = answer_head(status, headers, closes=closes, phrase=phrase)
        self.client.write(head if self.head.method == "HEAD" else head + body)
        self.client.end_answer()

    def end(self) -> None:
        """Ends the work. Drops the task, because it and this object would keep each other alive."""
        self._task = None

    def set_flowing(self, is_flowing: bool) -> None:
        """Called when the client stops taking what is written, or takes it again."""
        if self.source is not None:
            self.source.set_reading(is_flowing)
