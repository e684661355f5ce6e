"""Loading, limits and defaults of runners; what they compute is in test_decoder."""

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from shutil import copytree

import pytest
import torch

from inference_api.engine import kernel_runner
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.devices import check_memory, make_runner, share_memory
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.kernels import library
from inference_api.kernels.compilers import BuildFailed
from inference_api.kernels.library import PORTABLE, Kernels
from inference_api.kernels.packing import MAX_HEAD_DIM
from inference_api.loading import hardware
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import PAGE_TOKENS
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder
from inference_api.runner import RowStep, place_own_pages
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.steps import draw_next
from tests.inference_api.engine.tiny_models import (
    CONTEXT,
    EOS,
    VOCAB_SIZE,
    make_model,
    transformers_model,
)


@pytest.fixture
def folder(tiny_model: Tiny, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(copytree(tiny_model("llama"), tmp_path / "model"))


def test_facts_of_the_model_are_known_before_it_is_loaded(folder: Path) -> None:
    runner = KernelRunner(folder, EngineOptions(device="cpu", max_rows=4))
    assert runner.vocab_size == VOCAB_SIZE
    assert runner.eos_token_ids == {EOS}
    assert runner.max_seq_len == CONTEXT
    assert runner.max_rows == 4
    facts = runner.facts
    assert (facts.family, facts.device, facts.quantization) == ("llama", "cpu", "none")
    assert (facts.dtype, facts.kv_cache_dtype) == ("float32", "float32")
    assert facts.weights_bytes >= 4 * facts.num_parameters
    assert facts.cache_bytes == runner.footprint.cache_bytes
    assert facts.kernels == Kernels(1).variant


def test_default_context_is_the_models_own_and_of_rows_with_memory_of_their_own_2048(
    folder: Path, tmp_path: Path
) -> None:
    make_long(folder)
    options = EngineOptions(device="cpu", max_rows=4)
    assert KernelRunner(folder, options).max_seq_len == 131_072
    assert KernelRunner(folder, replace(options, max_seq_len=4096)).max_seq_len == 4096
    packed = PackedFolder(tmp_path / "packed", lambda: None)
    assert KernelRunner(folder, options, packed=packed).max_seq_len == 2048
    assert CudaRunner(folder, options).max_seq_len == 2048


def make_long(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 131_072}))


def test_default_context_of_longrope_is_the_first_one(tiny_model: Tiny) -> None:
    folder = tiny_model("phi3")
    (first,) = {rope.original_max_positions for rope in load_config(folder).ropes if rope}
    assert first < load_config(folder).max_positions
    assert KernelRunner(folder, EngineOptions(max_rows=1)).max_seq_len == first


def test_pages_are_as_many_as_there_is_memory_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_long(folder)
    options = EngineOptions(max_rows=4)
    page_bytes = KernelRunner(folder, options).layout.page_bytes
    of_all_rows = 4 * 131_072 // PAGE_TOKENS
    chosen = KernelRunner(folder, replace(options, kv_cache_bytes=100 * page_bytes))
    assert (chosen.layout.num_pages, chosen.max_seq_len) == (100, 100 * PAGE_TOKENS)
    assert chosen.facts.cache_bytes == 100 * page_bytes
    weights_bytes = chosen.footprint.weights_bytes
    free_bytes = weights_bytes + 1000 * page_bytes
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: free_bytes)
    assert KernelRunner(folder, options).layout.num_pages == 500
    shared = KernelRunner(folder, replace(options, num_runners=2))
    assert shared.layout.num_pages == 250
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: None)
    assert KernelRunner(folder, options).layout.num_pages == of_all_rows
    with pytest.raises(StartupError, match=r"KV_CACHE_MEMORY: .* at least .* MiB are needed"):
        KernelRunner(folder, replace(options, kv_cache_bytes=15 * page_bytes))


def test_a_context_that_memory_makes_shorter_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_long(folder)
    options = EngineOptions(max_rows=2, max_seq_len=4096)
    page_bytes = KernelRunner(folder, options).layout.page_bytes
    KernelRunner(folder, replace(options, kv_cache_bytes=2**30)).load()
    assert "contexts of" not in caplog.text
    KernelRunner(folder, replace(options, kv_cache_bytes=100 * page_bytes)).load()
    assert "has contexts of 3200 tokens, of 4096: there is memory for no more" in caplog.text


@pytest.mark.parametrize("asked_pages", [None, 100])
def test_models_leave_room_for_what_others_need(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked_pages: int | None
) -> None:
    make_long(folder)
    options = EngineOptions(max_rows=4, num_runners=3)
    page_bytes = KernelRunner(folder, options).layout.page_bytes
    asked_bytes = None if asked_pages is None else asked_pages * page_bytes
    weights_bytes = KernelRunner(folder, options).footprint.weights_bytes
    free_bytes = 3 * weights_bytes + 700 * page_bytes
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: free_bytes)
    runners = [
        *(KernelRunner(folder, options) for _ in range(2)),
        KernelRunner(folder, replace(options, kv_cache_bytes=asked_bytes)),
    ]
    share_memory(runners)
    counts = [each.layout.num_pages for each in runners]
    assert counts == ([116] * 3 if asked_pages is None else [100] * 3)
    check_memory(dict(zip("abc", runners, strict=True)))
    assert [each.max_seq_len for each in runners] == [count * PAGE_TOKENS for count in counts]


def test_a_context_beyond_the_models_is_refused_however_little_memory_there_is(
    folder: Path,
) -> None:
    options = EngineOptions(max_rows=2, max_seq_len=2**20)
    page_bytes = KernelRunner(folder, options).layout.page_bytes
    few = KernelRunner(folder, replace(options, kv_cache_bytes=16 * page_bytes))
    with pytest.raises(StartupError, match=f"MAX_SEQ_LEN={2**20} exceeds the model's"):
        few.load()


def test_a_rank_has_as_many_pages_as_the_first(folder: Path) -> None:
    runner = KernelRunner(folder, EngineOptions(max_rows=2, max_seq_len=96))
    runner.share_pages(4)
    assert (runner.layout.num_pages, runner.max_seq_len) == (4, 96)
    runner.share_pages(2)
    assert (runner.layout.num_pages, runner.max_seq_len) == (2, 64)


def test_warm_up_runs_with_a_single_row_and_with_many(folder: Path) -> None:
    for max_rows in (1, 9):
        runner = KernelRunner(folder, EngineOptions(max_rows=max_rows, max_seq_len=64))
        runner.load()
        place_own_pages(runner)
        runner.warm_up()
        assert draw_next(runner, 0, (1,), ()).token_id < VOCAB_SIZE


def test_last_position_of_the_context_can_be_used(folder: Path) -> None:
    runner = KernelRunner(folder, EngineOptions(device="cpu", max_rows=2, max_seq_len=50))
    runner.load()
    place_own_pages(runner)
    runner.step([RowStep(1, 0, [5] * 49)])
    assert draw_next(runner, 1, [5] * 50, []).token_id < VOCAB_SIZE


def test_sharded_weights_load_like_a_single_file(tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model("falcon-40b")
    transformers_model("falcon-40b").save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = []
    for each in (folder, tmp_path):
        runner = KernelRunner(each, EngineOptions(device="cpu", max_rows=1, max_seq_len=64))
        runner.load()
        place_own_pages(runner)
        tokens.append(draw_next(runner, 0, [7], []))
    assert tokens[0] == tokens[1]


def test_load_reports_all_faults_and_allocates_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 10_000)
    runner = KernelRunner(folder, EngineOptions(device="cpu", max_rows=4, max_seq_len=500))
    with pytest.raises(StartupError) as caught:
        runner.load()
    shapes, context, memory = caught.value.faults
    assert "mlp.gate_proj.weight is [96, 64] instead of [128, 64]" in shapes
    assert f"MAX_SEQ_LEN=500 exceeds the model's {CONTEXT} positions" in context
    assert memory.startswith("Memory:")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_a_device_is_refused(folder: Path) -> None:
    with pytest.raises(StartupError, match="set DEVICE=cpu"):
        make_runner(folder, EngineOptions(device="cuda", max_rows=4))


def test_cuda_without_torch_is_refused_and_auto_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hardware, "has_torch", lambda: False)
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: True)
    with pytest.raises(StartupError, match=r"pip install 'hearth\[cuda\]', or set DEVICE=cpu"):
        make_runner(folder, EngineOptions(device="cuda", max_rows=4))
    assert make_runner(folder, EngineOptions(device="auto", max_rows=4)).device == "cpu"
    [message] = caplog.messages
    assert "pip install 'hearth[cuda]'" in message


def test_auto_is_cuda_where_torch_finds_a_device(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: True)
    options = EngineOptions(device="auto", max_rows=4)
    for has_cuda in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", partial(bool, has_cuda))
        assert make_runner(folder, options).device == ("cuda" if has_cuda else "cpu")


def test_without_kernels_nothing_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> Path:
        raise BuildFailed("there is no C++ compiler; install one")

    monkeypatch.setattr(library, "_library", library._library.__wrapped__)
    monkeypatch.setattr(library, "library_path", unavailable)
    with pytest.raises(StartupError) as caught:
        KernelRunner(folder, EngineOptions(max_rows=1))
    assert caught.value.faults == ("there is no C++ compiler; install one",)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"intermediate_size": 80}, "model.layers.0.mlp.down_proj.weight (64, 80)"),
        ({"head_dim": MAX_HEAD_DIM + 32}, f"exceeds {MAX_HEAD_DIM}, the kernels' limit"),
    ],
)
def test_what_the_kernels_do_not_have_is_named_and_torch_serves_it(
    changes: dict[str, int], fault: str, tmp_path: Path
) -> None:
    make_model("llama", tmp_path, **changes)
    options = EngineOptions(device="cpu", max_rows=2, max_seq_len=16)
    [found] = check_one(tmp_path, options)
    assert fault in found
    assert found.endswith("set DEVICE=cuda or choose another model.")
    with pytest.raises(StartupError) as caught:
        KernelRunner(tmp_path, options)
    assert caught.value.faults == (found,)
    by_torch = CudaRunner(tmp_path, options)
    by_torch.load()
    place_own_pages(by_torch)
    assert draw_next(by_torch, 0, [5], []).token_id < VOCAB_SIZE


def test_float_weights_are_served_by_portable_kernels(folder: Path) -> None:
    options = EngineOptions(device="cpu", max_rows=1, max_seq_len=16)
    runner = KernelRunner(folder, options, partial(Kernels, variant=PORTABLE))
    runner.load()
    place_own_pages(runner)
    assert (runner.facts.kernels, runner.facts.quantization) == (PORTABLE, "none")
    assert draw_next(runner, 0, [5], []).token_id < VOCAB_SIZE


def test_runners_share_kernels(tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_runner, "MIN_PARAMETERS_TO_SHARE", 0)
    monkeypatch.setattr(hardware, "physical_cores", lambda: 2)
    made: list[int] = []

    @cache
    def kernels_of(num_threads: int) -> Kernels:
        made.append(num_threads)
        return Kernels(num_threads)

    options = EngineOptions(max_rows=1, max_seq_len=16)
    runners = [KernelRunner(tiny_model(name), options, kernels_of) for name in ("llama", "qwen2")]
    assert made == [2]
    assert [runner.facts.threads for runner in runners] == [2, 2]
