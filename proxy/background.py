"""Work beside requests: calls that would block the event loop, and work done again and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

log = logging.getLogger(__name__)

NUM_THREADS = 8
LEAST_S = 0.2  # least time between two runs, however often they are requested

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Aside:
    """Runs calls in threads: files, Redis, and fetching public keys. Owned by the app, which closes
    it. Event loop only."""

    def __init__(self) -> None:
        # Threads start at the first use, which is after gunicorn's fork.
        self._threads = ThreadPoolExecutor(NUM_THREADS, "proxy-aside")

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def run_later(self, function: Callable[[], object]) -> None:
        """Runs a call without waiting for it. It is done before `close` returns."""
        self._threads.submit(_logged, function)

    def close(self) -> None:
        self._threads.shutdown()


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


def _logged(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception:
        log.exception("what nobody waits for has failed")
