"""How much memory it takes to load a model with quantised weights, at its worst moment."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from inference_api.kernels.packing import BITS
from inference_api.loading.checkpoint import load_config
from inference_api.loading.memory import weights_size
from lab.kit.servers import TIMEOUT_S
from lab.models.random_model import SHAPES, make_random_model

SHARDS = 4
PEAK_OF_QUANTISED = 1.3
MEASURE = """
import sys
from pathlib import Path
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.options import EngineOptions

def peak_bytes():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in l)
    return int(line.split()[1]) * 1024

options = EngineOptions(
    device="cpu", dtype="bfloat16", max_rows=1, max_seq_len=16, quantization=sys.argv[2]
)
runner = KernelRunner(Path(sys.argv[1]), options)
runner.footprint  # loads the library
before = peak_bytes()
runner.load()
print(peak_bytes() - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 MB of float32 weights in shards of nearly equal size."""
    made = tmp_path_factory.mktemp("sharded")
    make_random_model(replace(SHAPES["110m"], layers=4, vocab_size=8000), made)
    tensors = load_file(made / "model.safetensors")
    (made / "model.safetensors").unlink()
    names = sorted(tensors)
    index = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        mine = {each: tensors[each].float() for each in names[shard::SHARDS]}
        save_file(mine, made / name, {"format": "pt"})
        index.update(dict.fromkeys(mine, name))
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return made


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_peak_is_little_more_than_the_weights_and_one_shard(
    folder: Path, quantization: str
) -> None:
    command: Sequence[str] = [sys.executable, "-c", MEASURE, str(folder), quantization]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    quantised = weights_size(load_config(folder), "bfloat16", BITS[quantization])
    shard = max(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert quantised < int(done.stdout) < PEAK_OF_QUANTISED * quantised + shard
