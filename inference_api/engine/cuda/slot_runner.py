"""A runner by torch for an expert of a bundle, which is loaded and unloaded again and again."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.parameters import load_torch_parameters, torch_parameters
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.cuda.slots import Place
from inference_api.kernels.library import Kernels
from inference_api.kernels.packing import FLOAT_BITS
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.files import PackedModel
from inference_api.loading.packing.folder import PackedFolder
from inference_api.loading.packing.pages import Pause
from inference_api.loading.settling import weight_bits
from inference_api.loading.weights import Packing
from inference_api.runner import Draw, Drawn, Hidden, RowStep

CPU = torch.device("cpu")


@dataclass(frozen=True)
class TorchPackedModel(PackedModel):
    """A packed model in the forms that torch has in memory."""

    by_torch: ClassVar[bool] = True

    def pack_into(self, memory: mmap.mmap, pause: Pause) -> None:
        """See `PackedModel`."""
        is_packed = self.bits not in FLOAT_BITS.values()
        packing = Packing(Kernels(1), self.bits) if is_packed else None
        dtype = getattr(torch, self.dtype)
        views = {name: torch.from_numpy(each) for name, each in self.views(memory).items()}
        load_torch_parameters(self.files, self.config, CPU, dtype, packing, views, pause)


class SlotRunner(CudaRunner):
    """One expert. `load` and `unload` may be called on another thread than the decode thread, while
    no step of this runner runs; other runners may step."""

    def __init__(
        self, model_dir: Path, options: EngineOptions, packed: PackedFolder, place: Place
    ) -> None:
        """`packed` is the folder of packed weights; `place` is their place on the device while they
        are loaded. See `LocalRunner`."""
        self._packed, self._place, self._has_packed_file = packed, place, True
        super().__init__(model_dir, replace(options, has_medusa=False, experts_on_cpu=0))

    @cached_property
    def _packed_model(self) -> TorchPackedModel:
        bits = weight_bits(self._options)
        of_files = (self._folder.name, self.files, self._config)
        return TorchPackedModel(*of_files, self._options.dtype, bits)

    def is_packed(self) -> bool:
        """See `LocalRunner`. Reads headers."""
        return self._packed.has(self._packed_model)

    def load(self) -> None:
        """See `LocalRunner`. Launches only copies."""
        footprint, place = self.footprint, self._place
        in_slot = replace(footprint, weights_bytes=0, num_pages=0)  # the slot is already allocated
        self._check(in_slot, are_files_read=not self.is_packed())
        self._key, file = self._file()
        self._weights, cache = (
            place.take(size) for size in (footprint.weights_bytes, footprint.cache_bytes)
        )
        place.slots.fill(self._weights, file)
        place.slots.clear(cache)  # may hold another expert's data, or rows of an earlier load
        self._cache = self._new_cache(cache)
        self._log_loaded()

    def _file(self) -> tuple[str, Tensor | mmap.mmap]:
        """Returns the key of the weights as they are now, and their packed file in memory."""
        files = self._place.slots.files
        key = self._packed.key(self._packed_model)
        if (file := files.get(key)) is not None:
            return key, file
        key, mapped = self._packed.memory(self._packed_model)
        file = files.hold(key, mapped)
        return key, mapped if file is None else file

    def unload(self) -> None:
        """See `LocalRunner`. Steps recorded in the slot stay, and no memory is freed, because the
        decode thread may be recording."""
        super(CudaRunner, self).unload()
        self._place.leave()

    def _forward(
        self, rows: Sequence[RowStep], draws: Sequence[Draw], positions: Sequence[int]
    ) -> tuple[Sequence[Drawn], Sequence[Hidden | None]]:
        if "decoder" not in vars(self):
            self._begin()
        return super()._forward(rows, draws, positions)

    @torch.inference_mode()
    def _begin(self) -> None:
        """Run before the first step since `load`: records the steps, unless these weights have been
        in this slot before."""
        slot, parts = self._place.slot, self._parts()
        assert slot is not None

        def make() -> Decoder:
            parameters = torch_parameters(self._config, self._dtype, self.bits, parts)
            return self._new_decoder(parameters)

        self.decoder = self._place.slots.recordings.decoder(self, slot, self._key, make)

    def _parts(self) -> dict[str, Tensor]:
        tensors = self._packed_model.layout.tensors
        return {each.name: self._weights[each.begin : each.end] for each in tensors}

    def _record(self) -> None:
        """Does nothing: `_begin` records the steps."""
