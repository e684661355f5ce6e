"""The loader thread of a bundle: loads and unloads members, one at a time.

The decode thread requests a load, and takes the result as an event at the start of a later turn.
Nothing else is shared. Loaded members decode meanwhile, so this thread runs at low priority.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread, get_native_id

from inference_api.bundle.members import Failure
from inference_api.core.loaded_model import LoadedModel
from inference_api.errors import StartupError
from inference_api.model_loading import LoadableModel, Stamp

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 5.0
NICENESS = 10  # the thread's niceness, so that decoding goes first


@dataclass(frozen=True, slots=True)
class Packing:
    name: str


@dataclass(frozen=True, slots=True)
class Loaded:
    name: str
    model: LoadedModel


@dataclass(frozen=True, slots=True)
class LoadFailed:
    name: str
    reason: str
    failure: Failure
    stamp: Stamp  # the stamp of its files when loading began


@dataclass(frozen=True, slots=True)
class Unloaded:
    name: str


LoaderEvent = Packing | Loaded | LoadFailed | Unloaded


class MemberLoader:
    """Loads and unloads members on a thread of its own. Its methods are for the decode thread."""

    def __init__(self, members: Mapping[str, LoadableModel], on_event: Callable[[], None]) -> None:
        """`on_event` is called by the loader thread for each new event."""
        self._members = members
        self._on_event = on_event
        self._jobs: SimpleQueue[Callable[[], LoaderEvent] | None] = SimpleQueue()
        self._events: SimpleQueue[LoaderEvent] = SimpleQueue()
        self._thread = Thread(target=self._run, name="loader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current job. Returns when it has ended, or after JOIN_TIMEOUT_S."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def load(self, name: str) -> None:
        self._jobs.put(lambda: self._load(name))

    def unload(self, name: str) -> None:
        self._jobs.put(lambda: self._unload(name))

    def events(self) -> Iterator[LoaderEvent]:
        """Yields the events since the last call. Never waits."""
        while not self._events.empty():
            yield self._events.get_nowait()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
        while (job := self._jobs.get()) is not None:
            self._emit(job())

    def _emit(self, event: LoaderEvent) -> None:
        self._events.put(event)
        self._on_event()

    def _load(self, name: str) -> LoaderEvent:
        member = self._members[name]
        started_s, stamp = time.monotonic(), member.stamp()
        try:
            if not member.is_packed():
                self._emit(Packing(name))
            model = member.load()
        except Exception as error:
            member.unload()
            faults = error.faults if isinstance(error, StartupError) else []
            fallback = f"{type(error).__name__}; the server's log has the details"
            reason = "; ".join(faults) or fallback  # shown to clients
            cause = None if faults else error
            logger.error("%s cannot be loaded: %s", name, reason, exc_info=cause)
            is_memory = isinstance(error, MemoryError)
            return LoadFailed(name, reason, Failure.MEMORY if is_memory else Failure.LOAD, stamp)
        logger.info("%s is in memory after %.3f s", name, time.monotonic() - started_s)
        return Loaded(name, model)

    def _unload(self, name: str) -> LoaderEvent:
        self._members[name].unload()
        return Unloaded(name)
