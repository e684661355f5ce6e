"""A KV cache for so many tokens, as a setting."""

from pathlib import Path

from inference_api.loading.checkpoint import describe, footprint_of
from inference_api.loading.options import EngineOptions

QUANTIZATION = "int8"
MIB = 2**20


def cache_for(model: Path, tokens: int) -> dict[str, str]:
    """Of a model that is served with `QUANTIZATION`."""
    described = describe(str(model))
    assert described.config is not None, described.faults
    options = EngineOptions(device="cpu", max_rows=1, quantization=QUANTIZATION)
    footprint = footprint_of(described.config, options, described.tensors)
    cache_bytes = footprint.layout.row_pages(tokens) * footprint.page_bytes
    return {"KV_CACHE_MEMORY": f"{-(-cache_bytes // MIB)}MiB"}
