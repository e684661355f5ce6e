"""Every reason not to start, each with its remedy, found without torch and without loading."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from inference_api.engine.devices import check_memory
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.kernels.packing import MAX_HEAD_DIM
from inference_api.loading import checkpoint, hardware, hub
from inference_api.loading.checkpoint import load_config, locate
from inference_api.loading.config import PAGE_TOKENS, num_pages
from inference_api.loading.files import read_headers
from inference_api.loading.memory import Footprint, all_within
from inference_api.loading.options import EngineOptions
from inference_api.loading.page_groups import PageGroup, bytes_of_pages, page_groups
from inference_api.settings import EMBEDDED_MODEL
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.tiny_models import EOS, MODELS

GIB = 1024**3


@pytest.fixture
def folder(tiny_model: Tiny, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(copytree(tiny_model("llama"), tmp_path / "model"))


def check(
    model: Path | str,
    max_rows: int = 4,
    max_seq_len: int | None = None,
    kv_cache_bytes: int | None = None,
) -> list[str]:
    options = EngineOptions(
        device="cpu", max_rows=max_rows, max_seq_len=max_seq_len, kv_cache_bytes=kv_cache_bytes
    )
    return check_one(model, options)


def edit(file: Path, **values: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    merged = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({k: v for k, v in merged.items() if v is not None}))


@pytest.mark.parametrize("name", MODELS)
def test_a_sound_model_has_no_faults(name: str, tiny_model: Tiny) -> None:
    assert check(tiny_model(name)) == []


def test_heads_wider_than_the_kernels_have_room_for_are_refused_on_the_cpu(folder: Path) -> None:
    edit(folder / "config.json", head_dim=MAX_HEAD_DIM)
    assert not any("head_dim=" in fault for fault in check(folder))
    edit(folder / "config.json", head_dim=MAX_HEAD_DIM + 2)
    assert [fault for fault in check(folder) if "head_dim=" in fault] == [
        f"head_dim={MAX_HEAD_DIM + 2} exceeds {MAX_HEAD_DIM}, the kernels' limit; "
        "set DEVICE=cuda or choose another model."
    ]


def test_latents_wider_than_the_kernels_have_room_for_are_refused_on_the_cpu(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    """What attention sees of a key is the latent and what is turned."""
    folder = tmp_path / "model"
    copytree(tiny_model("deepseek-v2"), folder)
    edit(folder / "config.json", kv_lora_rank=MAX_HEAD_DIM)
    [fault] = [fault for fault in check(folder) if "kernels' limit" in fault]
    assert fault.startswith(
        f"kv_lora_rank={MAX_HEAD_DIM} and qk_rope_head_dim=8 exceed {MAX_HEAD_DIM} together"
    )


@pytest.mark.slow
def test_memory_is_summed_over_all_models(
    tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tiny_model(name) for name in ("llama", "qwen2")}
    options = EngineOptions(device="cpu", max_rows=8, kv_cache_bytes=2**30)
    asked = [
        checkpoint.RequestedModel(name, str(folder), options) for name, folder in folders.items()
    ]
    runners = {name: KernelRunner(folder, options) for name, folder in folders.items()}
    needed_bytes = sum(runner.footprint.total_bytes for runner in runners.values())
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: needed_bytes)
    assert checkpoint.check_all(asked) == []
    check_memory(runners)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: needed_bytes - 1)
    assert all(checkpoint.check_all([each]) == [] for each in asked)
    [fault] = checkpoint.check_all(asked)
    assert fault.startswith("Memory: llama 0.0")
    assert ", qwen2 0.0" in fault
    assert "GiB of KV cache (1024 tokens)" in fault
    assert "in MODELS lower kv_cache_memory" in fault
    with pytest.raises(StartupError) as caught:
        check_memory(runners)
    assert caught.value.faults == (fault,)


def test_a_model_and_its_draft_model_have_room_for_as_many_tokens() -> None:
    model, draft = (
        Footprint(
            0, page_bytes, 4096, rows=8, context_tokens=4096, groups=[PageGroup(None, ())] * n
        )
        for page_bytes, n in ((7000, 3), (500, 2))
    )
    within = all_within([model, draft], 2**20)
    assert sum(each.cache_bytes for each in within) <= 2**20
    assert within[0].room_tokens == within[1].room_tokens == 2**20 // 22_000 * PAGE_TOKENS
    assert all_within([model], 2**20) == [model.within(2**20)]
    assert all_within([model, draft], None) == [model.within(None), draft.within(None)]


def test_faults_of_one_of_several_models_name_it(tmp_path: Path) -> None:
    options = EngineOptions(device="cpu", max_rows=1)
    asked = [
        checkpoint.RequestedModel("here", str(EMBEDDED_MODEL), options),
        checkpoint.RequestedModel("gone", str(tmp_path / "absent"), options),
    ]
    [fault] = checkpoint.check_all(asked)
    assert fault.startswith("gone: MODEL=")


def test_missing_folder(tmp_path: Path) -> None:
    [fault] = check(tmp_path / "absent")
    assert "absent is no folder; give the folder of a model, a GGUF file or a hub id" in fault


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    [fault] = check(folder)
    assert "has no config.json" in fault


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_config_that_is_no_json_object(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    [fault] = check(folder)
    assert "config.json" in fault
    assert "get the file again" in fault


def test_unsupported_architecture_names_the_supported_ones(folder: Path) -> None:
    edit(folder / "config.json", model_type="mamba")
    [fault] = check(folder)
    assert "'mamba'" in fault
    assert "glm4, glm4_moe, glm4_moe_lite, gpt_oss, granite" in fault


def test_layers_that_predict_further_tokens_are_left_out(tiny_model: Tiny, tmp_path: Path) -> None:
    """They follow the layers that `num_hidden_layers` counts."""
    folder = Path(copytree(tiny_model("deepseek-v3"), tmp_path / "model"))
    edit(folder / "config.json", num_hidden_layers=1)
    runner = KernelRunner(folder, EngineOptions(device="cpu", max_rows=1, max_seq_len=16))
    runner.load()
    assert runner.facts.num_layers == 1


def test_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    [fault] = check(folder)
    assert "lacks weights: model.safetensors" in fault


def test_bin_weights_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    [fault] = check(folder)
    assert "only .bin weights" in fault
    assert "save_pretrained" in fault


def test_shards_without_their_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    [fault] = check(folder)
    assert "lacks weights: model.safetensors.index.json" in fault


def test_index_that_names_a_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    [fault] = check(folder)
    assert "lacks weights: model-00002.safetensors" in fault


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
def test_damaged_index(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    [fault] = check(folder)
    assert "model.safetensors.index.json names no weights" in fault


@pytest.mark.parametrize("keep_bytes", [0, 7, 100, -1])
def test_weights_cut_short(folder: Path, keep_bytes: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep_bytes])
    [fault] = check(folder)
    assert "model.safetensors is damaged or incomplete" in fault


def test_weights_that_lack_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if ".1.mlp" not in n}, folder / "model.safetensors")
    [fault] = check(folder)
    assert "The weights lack model.layers.1.mlp" in fault


@pytest.mark.parametrize("claimed", [4, 1024])
def test_more_layers_than_the_weights_have(folder: Path, claimed: int) -> None:
    edit(folder / "config.json", num_hidden_layers=claimed)
    [fault] = check(folder)
    assert f"num_hidden_layers={claimed} in config.json" in fault
    assert "the weights have only 2 layers" in fault


def test_weights_of_another_shape(folder: Path) -> None:
    edit(folder / "config.json", vocab_size=301)
    [fault] = check(folder)
    assert "model.embed_tokens.weight is [300, 64] instead of [301, 64]" in fault


def test_missing_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    [fault] = check(folder)
    assert "has no tokenizer.json" in fault
    assert f"A.from_pretrained('{folder}').save_pretrained('{folder}')" in fault


def test_missing_tokenizer_that_alone_knew_the_eos_is_reported_once(folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=None)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "t17"}))
    (folder / "tokenizer.json").unlink()
    [fault] = check(folder)
    assert "has no tokenizer.json" in fault


@pytest.mark.parametrize("content", ["{}", '{"model": 1}', '{"model": {"vocab": [1]}}'])
def test_tokenizer_of_an_unknown_kind(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    [fault] = check(folder)
    assert "tokenizer.json is no tokenizer of the tokenizers library" in fault


@pytest.mark.parametrize(
    ("part", "steps"), [("normalizer", "normalizers"), ("decoder", "decoders")]
)
def test_tokenizer_that_may_lengthen_a_text_without_bound(
    folder: Path, part: str, steps: str
) -> None:
    doubles = {"type": "Replace", "pattern": {"String": "l"}, "content": "ll"}
    nested = {"type": "Sequence", steps: [{"type": "Sequence", steps: [doubles] * 4}] * 10}
    edit(folder / "tokenizer.json", **{part: {"type": "Sequence", steps: [doubles, doubles]}})
    assert check(folder) == []
    edit(folder / "tokenizer.json", **{part: nested})
    [fault] = check(folder)
    assert "more than 100 times longer" in fault


def test_tokenizer_without_eos(folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=None)
    [fault] = check(folder)
    assert "tokenizer without EOS" in fault
    assert "set eos_token_id" in fault


@pytest.mark.parametrize("eos", ["t17", {"content": "t17"}])
def test_eos_named_by_the_tokenizer_alone(folder: Path, eos: object) -> None:
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=None)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    assert check(folder) == []
    assert load_config(folder).eos_token_ids == {17}


def test_eos_ids_of_model_and_generation_config_are_united(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[5, 6])
    assert load_config(folder).eos_token_ids == {EOS, 5, 6}


def test_tokenizer_of_another_model(folder: Path) -> None:
    edit(folder / "tokenizer.json", added_tokens=[{"content": "<new>", "id": 300}])
    [fault] = check(folder)
    assert "ids up to 300" in fault
    assert "vocab_size=300" in fault


def test_context_longer_than_the_model_has(folder: Path) -> None:
    [fault] = check(folder, max_seq_len=129)
    assert fault == "MAX_SEQ_LEN=129 exceeds the model's 128 positions; lower it or unset it."


def test_too_little_memory_for_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are as many as fit, unless somebody says how many they have to be."""
    config = load_config(folder)
    page_bytes = bytes_of_pages(config, page_groups(config, 128), dtype="float32")
    cache_bytes = 256 * num_pages(128) * page_bytes
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: cache_bytes)
    [fault] = check(folder, max_rows=256, kv_cache_bytes=cache_bytes)
    assert f"{cache_bytes / GIB:.2f} GiB are free" in fault
    assert "KV cache of 32768 tokens" in fault
    assert "lower KV_CACHE_MEMORY" in fault
    assert check(folder, max_rows=256, kv_cache_bytes=cache_bytes // 2) == []
    assert check(folder, max_rows=256) == []
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 256 * page_bytes)
    [fault] = check(folder, max_rows=256)  # a page of each row, and no room for the weights
    assert "KV cache of 8192 tokens" in fault


def test_too_little_memory_for_the_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 1000)
    [fault] = check(folder)
    assert "choose a smaller model" in fault


def test_several_faults_are_all_reported(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()
    assert len(check(folder, max_seq_len=10_000)) == 3


def test_folder_is_located_where_it_is(folder: Path) -> None:
    assert locate(str(folder)) == folder


@pytest.mark.parametrize(
    ("model", "is_hub_id"),
    [
        ("owner/name", True),
        ("Owner-1/name_2.5-B", True),
        ("name", False),
        ("./owner/name", False),
        ("/owner/name", False),
        ("a/b/c", False),
        ("../name", False),
    ],
)
def test_hub_ids_are_told_from_paths(model: str, is_hub_id: bool) -> None:
    assert hub.is_hub_id(model) is is_hub_id


def test_hub_model_is_checked_by_its_headers(
    tiny_model: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = read_headers([folder / "model.safetensors"], "llama")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(hub, "fetch", lambda model, patterns, setting: folder)
    monkeypatch.setattr(hub, "stored_tensors", lambda model: shapes)
    assert check("owner/name") == []


def test_unreachable_hub_is_a_fault_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> str:
        raise OSError("no route to host\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    [fault] = check("owner/name")
    assert "MODEL=owner/name" in fault
    assert "(no route to host)" in fault
    with pytest.raises(StartupError, match="HF_TOKEN"):
        locate("owner/name")
