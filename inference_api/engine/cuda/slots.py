"""Slots: the memory of a device that holds the experts of a bundle, one expert in each.

Each slot has room for the largest expert. Slots are allocated once, and loading copies into one. A
step that was recorded in a slot therefore stays valid, whatever the slot held in between.
"""

import gc
import logging
import mmap
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.graphs import SPARE_BYTES, Capture, capturing
from inference_api.errors import StartupError
from inference_api.loading import hardware
from inference_api.loading.memory import GIB, SLOT_ALIGNMENT
from inference_api.loading.packing.pages import anonymous

logger = logging.getLogger(__name__)

Pin = Callable[[Tensor], None]  # raises RuntimeError

PIECE_BYTES = 64 * 2**20
"""Bytes that are copied at once. A step's own copy waits for one such piece at most."""

LEFT_BYTES = 2 * GIB  # memory of the host that held files leave free


def pin_on_cuda(tensor: Tensor) -> None:
    """Pin these bytes of the host, so that a GPU reads them by itself. Raises RuntimeError."""
    error = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if error:
        with suppress(RuntimeError):  # otherwise the next launch would raise the error
            torch.zeros(1, device="cuda").add_(1)
        raise RuntimeError(f"cudaHostRegister gave {error}")


class HeldFiles:
    """Packed files in pinned memory of the host. A GPU reads them by itself and the system does not
    evict them, so a load waits for the bus alone. Loader thread only."""

    def __init__(self, limit_bytes: int, pause: Callable[[], None], pin: Pin | None) -> None:
        """If `pin` is None, no file is held."""
        self._left_bytes = limit_bytes
        self._pause = pause
        self._pin = pin
        self._held: dict[str, Tensor] = {}

    def get(self, key: str) -> Tensor | None:
        return self._held.get(key)

    def hold(self, key: str, file: mmap.mmap) -> Tensor | None:
        """Returns a held copy of a file, or None if the host lacks memory or cannot pin any."""
        if self._pin is None or not self._has_room(len(file)):
            return None
        copy = torch.from_numpy(np.frombuffer(anonymous(len(file)), np.uint8))
        source = np.frombuffer(file, np.uint8)
        for begin in range(0, len(source), PIECE_BYTES):  # each piece is read, then pinned
            piece = copy[begin : begin + PIECE_BYTES]
            piece.numpy()[:] = source[begin : begin + PIECE_BYTES]
            self._try_to_pin(piece)
            self._pause()
        self._left_bytes -= len(source)
        self._held[key] = copy
        return copy

    def _has_room(self, num_bytes: int) -> bool:
        available_bytes = hardware.available_memory_bytes()
        if available_bytes is None or num_bytes + LEFT_BYTES <= available_bytes:
            return num_bytes <= self._left_bytes
        logger.warning(
            "%d bytes of the host's memory are too few to hold %d of a packed file: it is loaded "
            "through a buffer, which is slower",
            *(available_bytes, num_bytes),
        )
        return False

    def _try_to_pin(self, piece: Tensor) -> None:
        if self._pin is None:
            return
        try:
            self._pin(piece)
        except RuntimeError as error:
            logger.warning("memory of the host cannot be pinned, and loads are slower: %s", error)
            self._pin = None


class Recordings:
    """Decoders of experts that are or were in slots, with their recorded steps. When the device
    runs low on memory, the least recently used ones are dropped. Decode thread only."""

    def __init__(self, capture: Capture | None, free_bytes: Callable[[], int | None]) -> None:
        """If `capture` is None, nothing is recorded; if `free_bytes` returns None, all are kept."""
        self._capture = capture
        self._free_bytes = free_bytes
        self._kept: dict[tuple[object, int, str], Decoder] = {}  # most recently used last

    def decoder(self, owner: object, slot: int, key: str, make: Callable[[], Decoder]) -> Decoder:
        """Returns the decoder from when the owner's weights of this key were last in this slot, or
        a new one of `make`."""
        decoder = self._kept.pop((owner, slot, key), None)
        if decoder is None:
            self._make_room()
            decoder = make()
            if self._capture is not None:
                decoder.record(self._capture)
        self._kept[owner, slot, key] = decoder
        return decoder

    def _make_room(self) -> None:
        free_bytes = self._free_bytes()
        if free_bytes is None or free_bytes >= SPARE_BYTES:
            return
        kept = self._kept.items()
        not_in_memory = [at for at, own in kept if vars(at[0]).get("decoder") is not own]
        if not_in_memory:
            del self._kept[not_in_memory[0]]
            gc.collect()  # a decoder and its steps refer to each other


class Slots:
    """All slots. Loader thread only, except for `recordings`, and `allocate`, which comes first."""

    def __init__(
        self,
        device: str,
        pause: Callable[[], None],
        held_bytes: int = 0,
        capture: Capture | None = None,
        pin: Pin | None = None,
    ) -> None:
        """`pause` is called after every piece and may wait. Up to `held_bytes` of packed files are
        held in memory. On CUDA, `capture` and `pin` are CUDA's by default."""
        self._device = torch.device(device)
        is_cuda = self._device.type == "cuda"
        self.files = HeldFiles(held_bytes, pause, pin_on_cuda if is_cuda and pin is None else pin)
        capture = capturing() if is_cuda and capture is None else capture
        self.recordings = Recordings(capture, self.free_bytes)
        self._pause = pause
        self._stream = torch.cuda.Stream(self._device) if is_cuda else None
        self._staging = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=is_cuda)
        self.memory: list[Tensor] = []  # one for each slot
        self.free: list[int] = []  # numbers of slots

    @torch.inference_mode()
    def allocate(self, count: int, num_bytes: int) -> None:
        """Take the memory of all slots. Raises StartupError if less is left than SPARE_BYTES."""
        free_bytes = self.free_bytes()
        if free_bytes is not None and count * num_bytes + SPARE_BYTES > free_bytes:
            raise StartupError(
                f"fast_memory_limit: it has room for {count} experts, each of which takes what the "
                f"largest needs, {num_bytes} bytes, but the GPU has only {free_bytes} free, and "
                f"{SPARE_BYTES} are for recorded steps; lower it, or quantise, shorten or drop the "
                "largest."
            )
        self.memory = [
            torch.empty(num_bytes, dtype=torch.uint8, device=self._device) for _ in range(count)
        ]
        self.free = [*range(count)]

    def free_bytes(self) -> int | None:
        """Returns the free memory of a GPU. Any thread."""
        return torch.cuda.mem_get_info(self._device)[0] if self._stream is not None else None

    def place(self) -> "Place":
        """Returns a place for one expert."""
        return Place(self)

    @torch.inference_mode()
    def fill(self, target: Tensor, source: Tensor | mmap.mmap) -> None:
        """Copy a file, held or mapped, to `target`. Returns when the device has it, so that later
        steps may read it."""
        numbers = source if isinstance(source, Tensor) else np.frombuffer(source, np.uint8)
        with self._after_steps():
            for begin in range(0, len(numbers), PIECE_BYTES):
                piece = numbers[begin : begin + PIECE_BYTES]
                if not isinstance(piece, Tensor):
                    staged = self._staging[: len(piece)]
                    staged.numpy()[:] = piece
                    piece = staged
                target[begin : begin + len(piece)].copy_(piece, non_blocking=True)
                self._wait()
                self._pause()

    @torch.inference_mode()
    def clear(self, target: Tensor) -> None:
        """Fill `target` with zeros; otherwise like `fill`."""
        with self._after_steps():
            target.zero_()
            self._wait()

    def _after_steps(self) -> torch.cuda.StreamContext:
        """Returns a context whose launches follow everything that steps have launched, because
        those may still use the slot's earlier contents."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.default_stream(self._device))
        return torch.cuda.stream(self._stream)  # None changes nothing

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class Place:
    """The slot of one expert while it is in memory. Its model takes the first parts, and its draft
    model the next. Loader thread only."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.slot: int | None = None
        self._used_bytes = 0

    def take(self, num_bytes: int) -> Tensor:
        """Returns the next bytes of the expert's slot. One is always free: see `Residency`."""
        if self.slot is None:
            self.slot, self._used_bytes = self.slots.free.pop(0), 0
        part = self.slots.memory[self.slot][self._used_bytes :][:num_bytes]
        assert len(part) == num_bytes, "a slot has room for every expert"
        self._used_bytes += -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        return part

    def leave(self) -> None:
        """Free the slot. Idempotent, because every runner of the expert leaves."""
        if self.slot is not None:
            self.slots.free.insert(0, self.slot)
            self.slot = None
