"""Copies of GGUF files that say something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFReader, GGUFWriter

from lab.models.gguf_file import make_gguf
from lab.models.random_model import SHAPES, Shape, make_random_model

Metadata = dict[str, Any]


def small_gguf(folder: Path, shape: Shape = SHAPES["tiny"]) -> Path:
    """A file of random weights in 8 bits, beside the folder `model` that it was made of."""
    make_random_model(shape, folder / "model")
    make_gguf(folder / "model", folder / "model.gguf", "Q8_0")
    return folder / "model.gguf"


def rewritten(
    source: Path,
    target: Path,
    metadata: Callable[[Metadata], None] = lambda metadata: None,
    tensors: Callable[[dict[str, Any]], None] = lambda tensors: None,
) -> Path:
    """A copy with other metadata and tensors, in good order."""
    reader = GGUFReader(source)
    fields = {
        key: (field.types, field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    values = {key: value for key, (_, value) in fields.items()}
    kept = {tensor.name: (tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    metadata(values)
    tensors(kept)
    writer = GGUFWriter(target, values.pop("general.architecture"))
    for key, value in values.items():
        kinds, before = fields.get(key, ((), None))
        is_alike = isinstance(value, list) == isinstance(before, list)
        kind = kinds[0] if kinds and is_alike else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    for name, (data, form) in kept.items():
        writer.add_tensor(name, data, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
