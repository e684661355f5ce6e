"""Work that is done again and again while the proxy serves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

log = logging.getLogger(__name__)

LEAST_S = 0.2  # least time between two runs, however often they are requested


class Repeated:
    """Runs `work` every `pause_s()`, and soon after `request_run`, one run after another. Event
    loop only, except for `is_alive`. Owned by the app, which starts and stops it."""

    def __init__(self, work: Callable[[], Awaitable[object]], pause_s: Callable[[], float]) -> None:
        self._work, self._pause_s = work, pause_s
        self._is_wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def is_alive(self) -> bool:
        """Any thread."""
        return self._task is not None and not self._task.done()

    def request_run(self) -> None:
        self._is_wanted.set()

    async def _run(self) -> None:
        while True:
            self._is_wanted.clear()
            try:
                await self._work()
            except Exception:
                log.exception("work that is repeated has failed")
            await asyncio.sleep(LEAST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s() - LEAST_S):
                    await self._is_wanted.wait()
