"""Loading, limits and defaults of EngineRunner; what it computes is in test_decoder."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree

import pytest
import torch

from inference_api.engine import engine_runner
from inference_api.engine.engine_runner import EngineRunner
from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.loading import hardware
from inference_api.loading.options import EngineOptions
from inference_api.runner import RowStep
from tests.inference_api.conftest import TinyModel
from tests.inference_api.engine.steps import draw_next
from tests.inference_api.engine.tiny_models import CONTEXT, EOS, VOCAB_SIZE

Tiny = Callable[[str], TinyModel]


@pytest.fixture
def folder(tiny_model: Tiny, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(copytree(tiny_model("llama")[0], tmp_path / "model"))


def test_facts_of_the_model_are_known_before_it_is_loaded(folder: Path) -> None:
    runner = EngineRunner(folder, EngineOptions(device="cpu", max_rows=4))
    assert runner.vocab_size == VOCAB_SIZE
    assert runner.eos_token_ids == {EOS}
    assert runner.max_seq_len == CONTEXT
    assert runner.max_rows == 4
    facts = runner.facts
    assert (facts.family, facts.device, facts.quantization) == ("llama", "cpu", "none")
    assert (facts.dtype, facts.kv_cache_dtype) == ("float32", "float32")
    assert facts.weights_bytes >= 4 * facts.num_parameters
    assert facts.cache_bytes == runner.footprint.cache_bytes
    assert facts.kernels == ("torch" if runner._form.packing is None else Kernels(1).variant)


def test_default_context_is_at_most_2048_tokens(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    options = EngineOptions(device="cpu", max_rows=4)
    assert EngineRunner(folder, options).max_seq_len == 2048
    assert EngineRunner(folder, replace(options, max_seq_len=4096)).max_seq_len == 4096


def test_warm_up_runs_with_a_single_row_and_with_many(folder: Path) -> None:
    for max_rows in (1, 9):
        runner = EngineRunner(folder, EngineOptions(max_rows=max_rows, max_seq_len=64))
        runner.load()
        runner.warm_up()
        assert draw_next(runner, 0, (1,), ()).token_id < VOCAB_SIZE


def test_small_models_leave_the_other_cores_alone(folder: Path) -> None:
    EngineRunner(folder, EngineOptions(device="cpu", max_rows=1, max_seq_len=16)).load()
    assert torch.get_num_threads() == 1


def test_last_position_of_the_context_can_be_used(folder: Path) -> None:
    runner = EngineRunner(folder, EngineOptions(device="cpu", max_rows=2, max_seq_len=50))
    runner.load()
    runner.step([RowStep(1, 0, [5] * 49)])
    assert draw_next(runner, 1, [5] * 50, []).token_id < VOCAB_SIZE


def test_sharded_weights_load_like_a_single_file(tiny_model: Tiny, tmp_path: Path) -> None:
    folder, model = tiny_model("falcon-40b")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = []
    for each in (folder, tmp_path):
        runner = EngineRunner(each, EngineOptions(device="cpu", max_rows=1, max_seq_len=64))
        runner.load()
        tokens.append(draw_next(runner, 0, [7], []))
    assert tokens[0] == tokens[1]


def test_load_reports_all_faults_and_allocates_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 97}))
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 10_000)
    runner = EngineRunner(folder, EngineOptions(device="cpu", max_rows=4, max_seq_len=500))
    with pytest.raises(StartupError) as caught:
        runner.load()
    shapes, context, memory = caught.value.faults
    assert "mlp.gate_proj.weight is [96, 64] instead of [97, 64]" in shapes
    assert f"MAX_SEQ_LEN=500 exceeds the model's {CONTEXT} positions" in context
    assert memory.startswith("Memory:")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_a_device_is_refused(folder: Path) -> None:
    with pytest.raises(StartupError, match="set DEVICE=cpu"):
        EngineRunner(folder, EngineOptions(device="cuda", max_rows=4))


def test_runners_share_kernels_and_claim_torch_threads_of_their_own(
    tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_runner, "MIN_PARAMETERS_TO_SHARE", 0)
    monkeypatch.setattr(hardware, "physical_cores", lambda: 2)
    made: list[int] = []

    @cache
    def kernels_of(num_threads: int) -> Kernels:
        made.append(num_threads)
        return Kernels(num_threads)

    by_torch, *by_kernels = (
        EngineRunner(
            tiny_model(name)[0],
            EngineOptions(device="cpu", max_rows=1, max_seq_len=16, kernels=name != "falcon-7b"),
            kernels_of,
        )
        for name in ("falcon-7b", "llama", "qwen2")
    )
    threads_before = torch.get_num_threads()
    try:
        for runner in (by_torch, *by_kernels):
            runner.load()
        assert made == [2]
        for runner, num_threads in ((by_torch, 2), (by_kernels[0], 1), (by_torch, 2)):
            runner.step([RowStep(0, 0, [1, 2])])
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(threads_before)
