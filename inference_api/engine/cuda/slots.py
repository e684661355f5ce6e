"""Where experts of a bundle lie on a device: slots, each as large as the largest of them needs.

They are allocated once, and a load copies into one. A step that was recorded in a slot therefore
stays valid, whatever was there since its expert left.
"""

import mmap
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from inference_api.engine.cuda.graphs import Capture, capturing
from inference_api.errors import StartupError
from inference_api.loading.memory import SLOT_ALIGNMENT

PIECE_BYTES = 64 * 2**20
"""So much is copied at once: what a step copies meanwhile waits for one piece at most."""


class Slots:
    """Loader thread only, except for `allocate`, which comes before all else, and `capture`."""

    def __init__(
        self, device: str, pause: Callable[[], None], capture: Capture | None = None
    ) -> None:
        """`pause` is called after every piece. It may wait. `capture` records steps of a CUDA
        device unless it is given."""
        self._device = torch.device(device)
        is_cuda = self._device.type == "cuda"
        self.capture = capturing() if is_cuda and capture is None else capture
        self._pause = pause
        self._stream = torch.cuda.Stream(self._device) if is_cuda else None
        self._staging = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=is_cuda)
        self._memory: list[Tensor] = []
        self._free: list[int] = []

    @torch.inference_mode()
    def allocate(self, count: int, num_bytes: int) -> None:
        """Take the memory of all slots. Raises StartupError if there is not so much."""
        if self._stream is not None:
            free_bytes, _ = torch.cuda.mem_get_info(self._device)
            if count * num_bytes > free_bytes:
                raise StartupError(
                    f"fast_memory_limit: it has room for {count} experts, each of which takes what "
                    f"the largest needs, {num_bytes} bytes, but the GPU has only {free_bytes} "
                    "free; lower it, or quantise, shorten or drop the largest."
                )
        self._memory = [
            torch.empty(num_bytes, dtype=torch.uint8, device=self._device) for _ in range(count)
        ]
        self._free = [*range(count)]

    def take(self) -> int:
        """Returns the number of a free slot. There is one: see `Residency`."""
        return self._free.pop(0)

    def give_back(self, slot: int) -> None:
        self._free.insert(0, slot)

    def part(self, slot: int, begin: int, num_bytes: int) -> Tensor:
        return self._memory[slot][begin : begin + num_bytes]

    @torch.inference_mode()
    def fill(self, target: Tensor, source: mmap.mmap) -> None:
        """Copy a file that lies in memory. Returns when the device has it, so that any step that
        begins then may read it."""
        numbers = np.frombuffer(source, np.uint8)
        with self._after_steps():
            for begin in range(0, len(numbers), PIECE_BYTES):
                piece = numbers[begin : begin + PIECE_BYTES]
                staged = self._staging[: len(piece)]
                staged.numpy()[:] = piece
                target[begin : begin + len(piece)].copy_(staged, non_blocking=True)
                self._wait()
                self._pause()

    @torch.inference_mode()
    def clear(self, target: Tensor) -> None:
        """As `fill`, with zeros."""
        with self._after_steps():
            target.zero_()
            self._wait()

    def _after_steps(self) -> torch.cuda.StreamContext:
        """What is launched within comes after all that steps have launched: some may still move
        what lay in this slot."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.default_stream(self._device))
        return torch.cuda.stream(self._stream)  # None changes nothing

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class Place:
    """A slot for one expert, while it is in memory. Its model takes the first parts, and its draft
    model the next. Loader thread only."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.slot: int | None = None
        self._used_bytes = 0

    def take(self, num_bytes: int) -> Tensor:
        """Returns the next bytes of the slot."""
        if self.slot is None:
            self.slot, self._used_bytes = self.slots.take(), 0
        part = self.slots.part(self.slot, self._used_bytes, num_bytes)
        assert len(part) == num_bytes, "a slot has room for every expert"
        self._used_bytes += -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        return part

    def leave(self) -> None:
        """Idempotent: every runner of the expert leaves."""
        if self.slot is not None:
            self.slots.give_back(self.slot)
            self.slot = None
