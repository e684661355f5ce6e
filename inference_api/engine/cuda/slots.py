"""Where experts of a bundle lie on a device: slots, each as large as the largest of them needs.

They are allocated once, and a load copies into one. A step that was recorded in a slot therefore
stays valid, whatever was there since its expert left.
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
"""So much is copied at once: what a step copies meanwhile waits for one piece at most."""

LEFT_BYTES = 2 * GIB  # packed files leave the host so much


def pin_on_cuda(tensor: Tensor) -> None:
    """Have a GPU read these bytes of the host by itself. Raises RuntimeError."""
    error = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
    if error:
        with suppress(RuntimeError):  # else the next launch would raise it
            torch.zeros(1, device="cuda").add_(1)
        raise RuntimeError(f"cudaHostRegister gave {error}")


class HeldFiles:
    """Packed files in memory of the host that a GPU reads by itself, and that the system does not
    take back: a load waits for the bus alone. Loader thread only."""

    def __init__(self, limit_bytes: int, pause: Callable[[], None], pin: Pin | None) -> None:
        """`pin` None: no file is held."""
        self._left_bytes = limit_bytes
        self._pause = pause
        self._pin = pin
        self._held: dict[str, Tensor] = {}

    def get(self, key: str) -> Tensor | None:
        return self._held.get(key)

    def hold(self, key: str, file: mmap.mmap) -> Tensor | None:
        """Copy a file; None if the host has no memory for it, or if pinning has failed before."""
        if self._pin is None or not self._has_room(len(file)):
            return None
        held = torch.from_numpy(np.frombuffer(anonymous(len(file)), np.uint8))
        source = np.frombuffer(file, np.uint8)
        for begin in range(0, len(source), PIECE_BYTES):  # pinned in pieces, as they are read
            piece = held[begin : begin + PIECE_BYTES]
            piece.numpy()[:] = source[begin : begin + PIECE_BYTES]
            self._try_to_pin(piece)
            self._pause()
        self._left_bytes -= len(source)
        self._held[key] = held
        return held

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
    """Decoders of experts that are, or were, in slots, with their recorded steps. When the device
    has little memory left, those used longest ago go. Decode thread only."""

    def __init__(self, capture: Capture | None, free_bytes: Callable[[], int | None]) -> None:
        """`capture` None: nothing is recorded. `free_bytes` None: nothing has to go."""
        self._capture = capture
        self._free_bytes = free_bytes
        self._kept: dict[tuple[object, int, str], Decoder] = {}  # the last used is last

    def decoder(self, owner: object, slot: int, key: str, make: Callable[[], Decoder]) -> Decoder:
        """Returns what `make` made when weights of this key of the owner were last in this slot, or
        what it makes now."""
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
            gc.collect()  # steps refer to their decoder


class Slots:
    """Loader thread only, except for `allocate`, which comes before all else, and `recordings`."""

    def __init__(
        self,
        device: str,
        pause: Callable[[], None],
        held_bytes: int = 0,
        capture: Capture | None = None,
        pin: Pin | None = None,
    ) -> None:
        """`pause` is called after every piece. It may wait. Packed files of up to `held_bytes` are
        held in memory. `capture` and `pin` are those of CUDA unless they are given."""
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
        """Copy a file that is held, or mapped. Returns when the device has it, so that any step
        that begins then may read it."""
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
        """Returns the next bytes of the slot. There is a free one: see `Residency`."""
        if self.slot is None:
            self.slot, self._used_bytes = self.slots.free.pop(0), 0
        part = self.slots.memory[self.slot][self._used_bytes :][:num_bytes]
        assert len(part) == num_bytes, "a slot has room for every expert"
        self._used_bytes += -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        return part

    def leave(self) -> None:
        """Idempotent: every runner of the expert leaves."""
        if self.slot is not None:
            self.slots.free.insert(0, self.slot)
            self.slot = None
