"""Threads for calls that would block the event loop: files, Redis, and fetching public keys."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

log = logging.getLogger(__name__)

NUM_THREADS = 8

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Aside:
    """Runs calls in threads. Owned by the app, which closes it. Event loop only."""

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


def _logged(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception:
        log.exception("what nobody waits for has failed")
