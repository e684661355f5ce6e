"""One request on its way through the proxy. Event loop only."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from proxy.audit import Outcome
from proxy.clients.answers import answer_head
from proxy.clients.inbound import RequestBody
from proxy.clients.request_head import RequestHead
from proxy.errors import Headers


class Client(Protocol):
    """The client's connection, as an exchange uses it."""

    def must_close(self, *, is_last: bool = False) -> bool:
        """Whether the answer about to begin is the connection's last, by wish or by need."""

    def write(self, data: bytes) -> None: ...

    def end_answer(self) -> None:
        """All of the answer is written."""

    def break_off(self) -> None:
        """The answer has begun and will not be whole: the client has to see that."""

    @property
    def is_congested(self) -> bool: ...


class Source(Protocol):
    """The upstream side of an answer, held back while the client does not read."""

    def set_reading(self, is_reading: bool) -> None: ...


class Exchange:
    """A request, its client and, while an answer is relayed, where that comes from."""

    def __init__(self, head: RequestHead, body: RequestBody, client: Client) -> None:
        self.head, self.body, self.client = head, body, client
        self.abort_reason: Outcome | None = None
        self.source: Source | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def abort(self, reason: Outcome) -> None:
        """Cancel the work. The first reason stays."""
        if self.abort_reason is None and self._task is not None:
            self.abort_reason = reason
            # Not at once: a task that is cancelled before its first step leaves no audit line.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def answer(self, status: int, headers: Headers, body: bytes, phrase: str = "") -> None:
        """An answer of the proxy's own, whole. After an odd request nothing else is believed."""
        closes = self.client.must_close(is_last=status == 400)
        head = answer_head(status, headers, closes=closes, phrase=phrase)
        self.client.write(head if self.head.method == "HEAD" else head + body)
        self.client.end_answer()

    def end(self) -> None:
        """The work is done. A task and what it works on would keep each other alive."""
        self._task = None

    def set_flowing(self, is_flowing: bool) -> None:
        """The client takes what is written, or no longer does."""
        if self.source is not None:
            self.source.set_reading(is_flowing)
