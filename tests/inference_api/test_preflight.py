"""What is refused before a worker exists."""

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from shutil import copytree

import pytest
import torch

from inference_api.errors import StartupError
from inference_api.loading import hardware
from inference_api.model_loading import describe_models
from inference_api.preflight import check_start
from inference_api.settings import Settings
from inference_api.settings.bundle_file import Bundle
from inference_api.settings.model import EMBEDDED_MODEL
from tests.ports import free_port


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_that_is_not_there_is_a_fault_with_a_remedy() -> None:
    with pytest.raises(StartupError) as caught:
        check_start(Settings(device="cuda", service_port=free_port()), with_model=True)
    [fault] = caught.value.faults
    assert fault.startswith("DEVICE=cuda, but torch finds no CUDA device; set DEVICE=cpu")


@pytest.mark.slow
def test_torch_that_says_nothing_is_asked_again_by_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "CUDA_PROBE", "raise SystemExit('broken')")
    assert hardware.cuda_faults() == []
    monkeypatch.setattr(hardware, "CUDA_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(hardware, "PROBE_TIMEOUT_S", 0.1)
    assert hardware.cuda_faults() == []


def test_name_that_no_host_can_have_is_a_fault() -> None:
    settings = Settings(service_host="a..b", service_port=free_port())
    with pytest.raises(StartupError, match=r"SERVICE_HOST='.*', SERVICE_PORT=\d+ cannot be"):
        check_start(settings, with_model=False)


def test_a_folder_for_pages_must_be_one_that_this_process_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "cuda_faults", list)
    (tmp_path / "file").touch()
    for changes, named in (
        ({"prefix_cache_dir": str(tmp_path / "file")}, "file cannot be used: File exists; name a"),
        ({"prefix_cache_dir": "/proc/pages"}, "/proc/pages cannot be used: No such file"),
        ({"prefix_cache_dir": str(tmp_path), "split": "1,1"}, "unset it, or SPLIT"),
        ({"prefix_cache_dir": str(tmp_path), "prefix_reuse": False}, "PREFIX_REUSE=false does not"),
        ({"prefix_cache_dir": str(tmp_path), "device": "cuda"}, "is for the CPU; unset it"),
    ):
        asked = {"model": str(EMBEDDED_MODEL), "service_port": free_port(), **changes}
        with pytest.raises(StartupError) as caught:
            check_start(Settings.model_validate(asked), with_model=True)
        assert any(
            fault.startswith("PREFIX_CACHE_DIR") and named in fault for fault in caught.value.faults
        )


def test_a_draft_model_counts_before_the_start_as_the_loader_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {"model": str(EMBEDDED_MODEL), "user_rows": 3, "max_seq_len": 256, "device": "cpu"}
    asked |= {"kv_cache_memory": 6 * 2**20, "service_port": free_port(), "speculation": "draft"}
    settings = Settings.model_validate({**asked, "draft_model": str(EMBEDDED_MODEL)})
    [model] = describe_models(settings)
    alone, of_draft = (each.total_bytes for each in model.footprints)
    assert 5.5 * 2**20 < sum(each.cache_bytes for each in model.footprints) <= 6 * 2**20
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: alone + of_draft)
    check_start(settings, with_model=True)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: alone + of_draft - 1)
    check_start(Settings.model_validate(asked), with_model=True)
    with pytest.raises(StartupError) as caught:
        check_start(settings, with_model=True)
    [fault] = caught.value.faults
    assert fault.startswith("Memory: hearth-tiny 0.0")
    assert ", hearth-tiny's draft model 0.0" in fault
    assert fault.endswith(
        "too few; name a smaller DRAFT_MODEL or none, lower KV_CACHE_MEMORY, set QUANTIZATION=int8."
    )


@pytest.mark.parametrize("speculation", ["off", "draft"])
def test_least_cache_that_the_fault_names_is_enough_for_the_loader_too(speculation: str) -> None:
    asked = {"device": "cpu", "speculation": speculation, "draft_model": str(EMBEDDED_MODEL)}

    def settings(mib: float) -> Settings:
        chosen = {"kv_cache_memory": int(mib * 2**20), "service_port": free_port()}
        return Settings.model_validate({"model": str(EMBEDDED_MODEL), **asked, **chosen})

    with pytest.raises(StartupError) as caught:
        check_start(settings(0.5), with_model=True)
    [fault] = caught.value.faults
    [least] = map(float, re.findall(r"KV_CACHE_MEMORY: 0.5 MiB .* at least ([0-9.]+) MiB", fault))
    for start in (partial(check_start, with_model=True), describe_models):
        start(settings(least))
        with pytest.raises(StartupError, match="KV_CACHE_MEMORY: "):
            start(settings(least - 0.1))


def test_heads_count_before_the_start_as_the_loader_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {"user_rows": 3, "max_seq_len": 256, "device": "cpu", "speculation": "medusa"}
    asked |= {"kv_cache_memory": 6 * 2**20, "service_port": free_port()}
    settings = Settings.model_validate(asked)
    [model] = describe_models(settings)
    [needed] = model.footprints
    for num_missing in (0, 1):
        free_bytes = needed.total_bytes - num_missing
        monkeypatch.setattr(hardware, "available_memory_bytes", lambda free=free_bytes: free)
        with pytest.raises(StartupError, match="Memory: ") if num_missing else nullcontext():
            check_start(settings, with_model=True)
    absent = Settings.model_validate({**asked, "medusa_heads": "/absent"})
    with pytest.raises(StartupError, match="MEDUSA_HEADS=/absent is no folder here"):
        check_start(absent, with_model=True)


def test_a_draft_model_that_cannot_draft_stops_the_start(tmp_path: Path) -> None:
    copytree(EMBEDDED_MODEL, tmp_path / "other")
    (tmp_path / "empty").mkdir()
    tokenizer = tmp_path / "other" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"ase":', '"esa":'))
    asked = {"model": str(EMBEDDED_MODEL), "service_port": free_port(), "speculation": "auto"}
    for name, fault in (
        ("absent", rf"DRAFT_MODEL={tmp_path / 'absent'} is no folder; give"),
        ("empty", r"DRAFT_MODEL: .*config.json"),
        (
            "other",
            rf"DRAFT_MODEL={tmp_path / 'other'} cannot draft for .*: the vocabularies differ",
        ),
    ):
        settings = Settings.model_validate({**asked, "draft_model": str(tmp_path / name)})
        with pytest.raises(StartupError, match=fault):
            check_start(settings, with_model=True)


def bundle_of(source: Path) -> Bundle:
    experts = [{"name": "e", "source": str(source)}]
    limits = {"version": 1, "memory_limit": 2**30, "fast_memory_limit": 2**30}
    return Bundle.model_validate({**limits, "experts": experts})


def test_bundle_that_can_be_served_is_no_fault() -> None:
    check_start(Settings(bundle=bundle_of(EMBEDDED_MODEL), service_port=free_port()), True)


def test_every_error_of_a_bundle_stops_the_start(tmp_path: Path) -> None:
    settings = Settings(bundle=bundle_of(tmp_path / "absent"), service_port=free_port())
    with pytest.raises(StartupError) as caught:
        check_start(settings, with_model=True)
    [fault] = caught.value.faults
    assert fault.startswith(f"BUNDLE: e: source={tmp_path / 'absent'} is no folder; give")
    check_start(settings, with_model=False)


def test_experts_on_the_cpu_are_for_one_mixture_on_a_gpu() -> None:
    settings = Settings(
        bundle=bundle_of(EMBEDDED_MODEL), experts_on_cpu=1, service_port=free_port()
    )
    with pytest.raises(StartupError, match="EXPERTS_ON_CPU is for a model outside of a bundle"):
        check_start(settings, with_model=True)
    with pytest.raises(StartupError) as caught:
        check_start(
            Settings(device="cpu", experts_on_cpu=1, service_port=free_port()), with_model=True
        )
    has_none, is_gpus = caught.value.faults
    assert "EXPERTS_ON_CPU=1: 0 layers of the model have experts" in has_none
    assert "EXPERTS_ON_CPU=1 is for a GPU" in is_gpus


def test_what_has_to_be_in_memory_of_a_bundle_has_to_be_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 1000)
    with pytest.raises(StartupError, match=r"take \d+ bytes, but only 1000 are free, \d+ too few"):
        check_start(Settings(bundle=bundle_of(EMBEDDED_MODEL), service_port=free_port()), True)
