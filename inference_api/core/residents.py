"""Decides which models are in memory, and whose requests may take a row. Decode thread only.

`FixedModels` keeps all models in memory. For models that are loaded on demand see `bundle`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Protocol

from inference_api.core.batching import Batching
from inference_api.core.input_queue import InputQueue
from inference_api.core.loaded_model import LoadedModel
from inference_api.core.rows import UserRow
from inference_api.core.served_model import ServedModel
from inference_api.loading.hardware import available_memory_bytes

LOW_MEMORY_BYTES = 256 * 1024**2
MEMORY_LOOKS_S = 0.5  # seconds between two checks of the free memory


class Residents(Protocol):
    models: Mapping[str, LoadedModel]
    """Models in memory, by name. It is replaced, never changed, so any thread may read it."""
    served: Mapping[str, ServedModel]
    """All models served, by name, in memory or not; the default first."""

    def start(self, now_s: float) -> None:
        """Begin to load the models that load at start."""

    @property
    def has_started(self) -> bool:
        """Returns whether the models that load at start are in memory. Raises StartupError."""

    def stop(self) -> None:
        """Stop loading. Call it after joining the decode thread."""

    def turn(self, now_s: float) -> None:
        """Do what is due. Called at the beginning of every turn of the decode loop."""

    def to_start(self, now_s: float) -> Iterator[LoadedModel]:
        """Yields models that may start a request, one for each request. The caller starts it and
        calls `started` before it asks for the next model."""

    def started(self, model: LoadedModel, row: UserRow, now_s: float) -> None:
        """Note that a request has taken a row."""

    def ended(self, model: LoadedModel, now_s: float) -> None:
        """Note that a request has given its row back."""

    def idle_s(self, now_s: float) -> float:
        """Returns how long the loop may sleep if no row is busy and no request comes."""


class FixedModels(Residents):
    """Models that stay in memory from start to end. Each has its own rows."""

    has_started = True

    def __init__(
        self,
        models: Iterable[LoadedModel],
        input_queue: InputQueue,
        batching: Batching,
        free_bytes: Callable[[], int | None] = available_memory_bytes,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.served = {name: model.served for name, model in self.models.items()}
        self._input_queue = input_queue
        self._batching = batching
        self._free_bytes = free_bytes
        self._looks_at_s = -inf

    def turn(self, now_s: float) -> None:
        """Give up half of the pages kept for later prompts if the machine's memory runs low. Pages
        take memory only once they are written, and other processes may have taken it by then."""
        if now_s < self._looks_at_s:
            return
        self._looks_at_s = now_s + MEMORY_LOOKS_S
        free_bytes = self._free_bytes()
        if free_bytes is not None and free_bytes < LOW_MEMORY_BYTES:
            for pages in [each for model in self.models.values() for each in model.all_pages]:
                held, cached, _ = pages.counts
                pages.trim(held + cached // 2)

    def to_start(self, now_s: float) -> Iterator[LoadedModel]:
        for name, model in self.models.items():
            waiting, num_busy = self._input_queue.waiting(name), len(model.rows)
            for _ in range(self._batching.num_admitted(waiting, num_busy, now_s)):
                request = self._input_queue.peek(name)
                if request is None or not model.rows.may_admit(request):
                    break
                yield model

    def idle_s(self, now_s: float) -> float:
        """Returns the seconds until waiting requests may take rows."""
        opens_at_s = min(
            self._batching.opens_at_s(self._input_queue.waiting(name), num_busy=0)
            for name in self.models
        )
        return max(0.0, opens_at_s - now_s)

    def start(self, now_s: float) -> None: ...
    def stop(self) -> None: ...
    def started(self, model: LoadedModel, row: UserRow, now_s: float) -> None: ...
    def ended(self, model: LoadedModel, now_s: float) -> None: ...
