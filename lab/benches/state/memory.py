"""Computes the setting for a KV cache of a number of tokens."""

from pathlib import Path

from inference_api.loading.checkpoint import describe
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import settle

QUANTIZATION = "int8"
MIB = 2**20


def cache_for(model: Path, tokens: int) -> dict[str, str]:
    """Returns the setting for `tokens` of a model that is served with `QUANTIZATION`."""
    described = describe(str(model))
    assert described.config is not None, described.faults
    options = EngineOptions(device="cpu", max_rows=1, quantization=QUANTIZATION)
    footprint = settle(described.config, options, described.tensors).footprint()
    cache_bytes = footprint.layout.row_pages(tokens) * footprint.page_bytes
    return {"KV_CACHE_MEMORY": f"{-(-cache_bytes // MIB)}MiB"}
