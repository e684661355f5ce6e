"""The driver of llama.cpp, against a `llama-bench` that places layers as llama.cpp does."""

import json
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from tests.weights.memory_store import MemoryStore
from weights.drivers.gguf_layers import read_num_layers
from weights.drivers.llama_cpp import LlamaCppDriver
from weights.drivers.loop import Search, drive
from weights.errors import EngineUnusable, TrialFailed
from weights.samplers import SAMPLERS
from weights.service import WeightsService

# Layer i goes to the first device whose running share of the split exceeds i / (layers + 1).
BENCH = """#!{python}
import json, sys
from itertools import accumulate
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["--n-gpu-layers"] == "999" and given["--split-mode"] == "layer"
shares = [float(each) for each in given["--tensor-split"].split("/")]
assert len(given["--device"].split("/")) == len(shares)
layers, layer_ms = 12, [1.0, 2.0, 4.0]
ends = [end / sum(shares) for end in accumulate(shares)]
place = [next(d for d, end in enumerate(ends) if end > i / (layers + 1)) for i in range(layers + 1)]
assert place[-1] == len(shares) - 1, "the output is the last device's"
counts = [place[:-1].count(device) for device in range(len(shares))]
print(f"layers {{counts}}", file=sys.stderr)
{body}
ms = sum(count * each for count, each in zip(counts, layer_ms))
tests = [{{"n_prompt": 0, "n_gen": int(given["--n-gen"]), "avg_ts": 1000 / ms, "stddev_ts": 0.1}}]
if given["--n-prompt"] != "0":
    tests.insert(0, {{"n_prompt": int(given["--n-prompt"]), "n_gen": 0, "avg_ts": 8000 / ms}})
print(json.dumps(tests))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_with(tmp_path)


def model_with(folder: Path, tokens: Sequence[str] = ()) -> Path:
    path = folder / "model.gguf"
    writer = GGUFWriter(path, "llama")
    if tokens:
        writer.add_token_list(tokens)
    writer.add_block_count(12)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def driver_of(tmp_path: Path, model: Path, body: str = "", **fields: Any) -> LlamaCppDriver:
    program = tmp_path / "llama-bench"
    program.write_text(BENCH.format(python=sys.executable, body=body))
    program.chmod(0o755)
    rpc = ("10.0.0.2:50052", "10.0.0.3:50052")
    return LlamaCppDriver(str(program), model, rpc, ("CUDA0",), timeout_s=60, **fields)


@pytest.mark.slow
def test_the_search_fills_the_fastest_devices(tmp_path: Path, model: Path) -> None:
    lines: list[str] = []
    service = WeightsService(MemoryStore(), SAMPLERS["adaptive"])
    driver = driver_of(tmp_path, model)
    assert drive(driver, Search(service, "s", driver.ring), 20, lines.append) == (10, 1, 1)
    assert json.loads(lines[-1])["setting"] == (
        "--rpc 10.0.0.2:50052,10.0.0.3:50052 --device RPC0,RPC1,CUDA0 --n-gpu-layers 999 "
        "--split-mode layer --tensor-split 9.5,1,2.5"
    )


@pytest.mark.parametrize("layers", [(4, 4, 4), (1, 1, 10), (10, 1, 1), (3, 8, 1), (5, 6, 1)])
def test_devices_get_exactly_the_layers_asked_for(
    tmp_path: Path, model: Path, layers: tuple[int, int, int]
) -> None:
    driver = driver_of(tmp_path, model)
    expected = 1000 / (layers[0] + 2 * layers[1] + 4 * layers[2])
    assert driver.measure(layers) == pytest.approx(expected)


def test_prompts_are_part_of_a_request_where_they_are_asked_for(
    tmp_path: Path, model: Path
) -> None:
    driver = driver_of(tmp_path, model, prompt_tokens=80, generated_tokens=10)
    assert driver.measure((4, 4, 4)) == pytest.approx(10 / (80 / (8000 / 28) + 10 / (1000 / 28)))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('out of memory')", "ended with 1: out of memory"),
        ("print('Segfault'); sys.exit(0)", "no JSON: layers"),
        ("print('{}'); sys.exit(0)", "no list"),
        ("print('[1]'); sys.exit(0)", "no list"),
        ("print('[]'); sys.exit(0)", "no generation"),
        ("print('[{\"n_gen\": 1}]'); sys.exit(0)", "None tokens/s"),
        ('print(\'[{"n_gen": 1, "avg_ts": NaN}]\'); sys.exit(0)', "nan tokens/s"),
    ],
)
def test_what_llama_bench_cannot_measure_is_a_failed_trial(
    tmp_path: Path, model: Path, body: str, reason: str
) -> None:
    with pytest.raises(TrialFailed, match=reason):
        driver_of(tmp_path, model, body).measure((4, 4, 4))


def test_a_program_that_is_not_there_ends_the_search(model: Path) -> None:
    driver = LlamaCppDriver("/nowhere/llama-bench", model, ("a:1", "b:2"))
    with pytest.raises(EngineUnusable, match="/nowhere/llama-bench does not start"):
        driver.measure((6, 6))


def test_a_large_vocabulary_takes_little_memory(tmp_path: Path) -> None:
    count = 50_000
    model = model_with(tmp_path, [f"{number:06}" for number in range(count)])
    tracemalloc.start()
    assert read_num_layers(model) == 12
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100 * count + 4 * 1024**2


@pytest.mark.parametrize("raw", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, b"{}"])
def test_files_that_are_no_gguf_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.gguf").write_bytes(raw)
    with pytest.raises(EngineUnusable, match="does not tell its layers"):
        read_num_layers(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("config", "num_layers"),
    [('{"num_hidden_layers": 36}', 36), ('{"text_config": {"num_hidden_layers": 62}}', 62)],
)
def test_folders_tell_their_layers(tmp_path: Path, config: str, num_layers: int) -> None:
    (tmp_path / "config.json").write_text(config)
    assert read_num_layers(tmp_path) == num_layers


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"num_hidden_layers": 1e9}', "[" * 10**5])
def test_other_folders_are_refused(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(EngineUnusable, match="layers"):
        read_num_layers(tmp_path)
