"""Copies of GGUF files that say something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFReader, GGUFWriter

Metadata = dict[str, Any]


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
