"""Writes a GGUF file with fewer bits from another. Metadata, names and vectors stay the same."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from common.files import whole_file
from inference_api.errors import StartupError
from inference_api.kernels.library import UnusableWeight
from inference_api.kernels.packing import GROUP
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.gguf.blocks import GgufTensor
from inference_api.loading.gguf.container import FileTensor, GgufFile
from inference_api.loading.gguf.files import GgufModel, layer_of, read_gguf
from inference_api.loading.gguf.names import gguf_names, row_order
from inference_api.loading.layout import HEAD, linear_weights, matrices
from scripts.quantize.blocks import Bytes
from scripts.quantize.grids import Form
from scripts.quantize.plan import Plan, Sizes, average_bits, planned
from scripts.quantize.rounding import Feedback, rounded

if TYPE_CHECKING:
    from scripts.quantize.calibration import Calibration

logger = logging.getLogger(__name__)

OWN_KEYS = ("general.architecture", "general.file_type", "general.quantization_version")
LAST = 2**31  # the place of tensors that belong to no layer

Start = Callable[[Path, GgufModel], "Calibration"]


def make(
    source: Path,
    target: Path,
    start: Start | None = None,
    planning: Callable[[Sizes], Plan] = planned,
) -> tuple[float, Counter[str]]:
    """Writes `target`. Returns the mean bits of a weight, over all matrices, and the number of
    weights by the name of their type. `start`, if given, begins a calibration. Raises
    StartupError."""
    model = read_gguf(source)
    if model.factors:
        raise StartupError([f"{source} has NVFP4 with factors; begin with a file of F16 or BF16."])
    stacks = _stacks(model)
    sizes = {
        tensor.name: (prod(tensor.shape), tensor.shape[-1])
        for tensor in model.file.tensors.values()
        if tensor.name in stacks
    }
    plan = planning(sizes)
    tensors = sorted(model.file.tensors.values(), key=_place)
    rounder = _Rounder(source, model, plan, stacks, None if start is None else start(source, model))
    with whole_file(target) as draft:
        writer = GGUFWriter(draft, model.architecture)
        _copy_metadata(model.file, writer)
        for tensor in tensors:
            _announce(tensor, plan.get(tensor.name), writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        try:
            for data in rounder.all(tensors):
                writer.write_tensor_data(data)
        except UnusableWeight as error:
            raise StartupError([f"{source} cannot be read: {error}; get it again."]) from error
        finally:
            writer.close()
    weights: Counter[str] = Counter()
    for name, form in plan.items():
        weights[form.kind.name] += sizes[name][0]
    return average_bits(sizes, plan), weights


def _stacks(model: GgufModel) -> dict[str, list[SourceTensor]]:
    """Returns the matrices by their names in the file; the experts of a layer share one. Leaves out
    those with a number of inputs that blocks do not fit, which stay as they are."""
    names = gguf_names(model.architecture, model.config)
    stacks: dict[str, list[SourceTensor]] = {}
    for part in matrices(model.config):
        if part.name not in model.halves and part.shape[-1] % GROUP == 0:
            stacks.setdefault(names[part.name], []).append(part)
    return stacks


def _place(tensor: FileTensor) -> int:
    """Returns a sort key: layers come in order, for the calibration, then tensors of no layer."""
    layer = layer_of(tensor.name)
    return LAST if layer < 0 else layer


def _copy_metadata(file: GgufFile, writer: GGUFWriter) -> None:
    for key, value in file.metadata.items():
        if key not in OWN_KEYS and value != []:  # the writer takes no empty list
            writer.add_key_value(key, value, *file.kinds[key])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)  # the type that fits best


def _announce(tensor: FileTensor, form: Form | None, writer: GGUFWriter) -> None:
    made = tensor if form is None else tensor._replace(kind=form.kind)
    float32 = np.dtype(np.float32)
    writer.add_tensor_info(made.name, made.shape, float32, made.num_bytes, made.kind)


@dataclass(frozen=True, slots=True)
class _Rounder:
    """Rounds layer after layer, so that the calibration can advance from one to the next."""

    source: Path
    model: GgufModel
    plan: Plan
    stacks: Mapping[str, Sequence[SourceTensor]]
    calibration: "Calibration | None"

    @property
    def _num_layers(self) -> int:
        """The number of layers, without those that predict further tokens."""
        return self.model.config.num_layers

    def all(self, tensors: Sequence[FileTensor]) -> Iterator[NDArray[Any]]:
        """Yields the data of `tensors`, which must be in the order of `_place`."""
        for place, group in groupby(tensors, _place):
            feedbacks = self._feedbacks(place)
            for tensor in group:
                is_matrix = tensor.name in self.plan
                yield self._rounded(tensor, feedbacks) if is_matrix else tensor.read(self.source)
            if place < self._num_layers:
                logger.info("layer %d of %d is done", place + 1, self._num_layers)
                if self.calibration is not None:
                    self.calibration.advance()

    def _feedbacks(self, place: int) -> dict[str, Feedback | None]:
        """Returns the feedback for the matrices at a place, by their names as parts."""
        calibration = self.calibration
        if calibration is None or self._num_layers <= place < LAST:
            return {}
        if place == LAST:
            [head] = linear_weights(self.model.config)[HEAD]
            return {head.name: Feedback.of(calibration.head_moments())}
        moments = calibration.moments(place)
        # Several matrices have the same inputs, so their feedback is computed once.
        once = {id(each): each for each in moments.values()}
        feedbacks = {key: Feedback.of(each) for key, each in once.items()}
        return {name: feedbacks[id(each)] for name, each in moments.items()}

    def _rounded(self, tensor: FileTensor, feedbacks: Mapping[str, Feedback | None]) -> Bytes:
        form, parts = self.plan[tensor.name], self.stacks[tensor.name]
        parts_data = []
        for part in parts:
            rows = GgufTensor(tensor.kind, self.model.tensors[part.name].read(self.source)).rows()
            feedback = feedbacks.get(part.name)
            data = np.concatenate([rounded(form, numbers, feedback) for _, numbers in rows])
            parts_data.append(data)
            if self.calibration is not None and 0 <= layer_of(tensor.name) < self._num_layers:
                order = row_order(self.model.architecture, part, self.model.config)
                stored = GgufTensor(form.kind, data)
                self.calibration.replace_part(
                    part.name, (stored.reordered(order) if order else stored).numbers()
                )
        return np.concatenate(parts_data)
