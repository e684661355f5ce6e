"""What a row of models with recurrent layers takes, in the published shapes that are measured."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from inference_api.kernels.packing import BITS
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import PAGE_TOKENS
from inference_api.loading.memory import Footprint
from inference_api.loading.options import EngineOptions
from lab.models.random_hybrid import SHAPES

# Layers x heads x the two sides of a state, and layers x channels x the tokens before one; of a
# token, layers x heads x sides of keys and values.
STATES = {
    "qwen3.5-0.8b": (18 * 16 * 128 * 128 + 18 * 6144 * 3, 6 * 2 * 2 * 256),
    "qwen3.5-4b": (24 * 32 * 128 * 128 + 24 * 8192 * 3, 8 * 4 * 2 * 256),
    "lfm2-1.2b": (10 * 2048 * 2, 6 * 8 * 2 * 64),
    "granite-4.0-h-micro": (36 * 64 * 64 * 128 + 36 * 4352 * 3, 4 * 8 * 2 * 64),
    "qwen3.6-35b-a3b-4-layers": (3 * 32 * 128 * 128 + 3 * 8192 * 3, 1 * 2 * 2 * 256),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_has_a_state_in_float32_and_of_a_token_what_attends(
    name: str, tmp_path: Path
) -> None:
    config = AutoConfig.for_model(**SHAPES[name]).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    options = EngineOptions(
        device="cpu", dtype="float32", max_rows=1, quantization="int8", kv_cache_dtype="float16"
    )
    footprint = Footprint.of(load_config(tmp_path), options, BITS["int8"])
    state_floats, token_elements = STATES[name]
    assert footprint.state_bytes == 4 * state_floats
    assert footprint.page_bytes == PAGE_TOKENS * 2 * token_elements
