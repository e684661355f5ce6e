"""Reading weights while somebody changes their files."""

import os
from pathlib import Path
from shutil import copytree

import pytest

from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.loading.checkpoint import load_config
from inference_api.loading.files import weight_files
from inference_api.loading.weights import Packing, load_parameters
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.parameters import packed_parameters


@pytest.fixture(params=["safetensors", "gguf"])
def model(request: pytest.FixtureRequest, tiny_model: Tiny, tmp_path: Path) -> Path:
    """A copy to spoil."""
    folder = tiny_model("llama")
    if request.param == "safetensors":
        return Path(copytree(folder, tmp_path / "model"))
    make_gguf(folder, tmp_path / "model.gguf", "F32")
    return tmp_path / "model.gguf"


def test_file_cut_short_while_it_is_read_is_refused_by_name(model: Path) -> None:
    [file] = weight_files(model)
    config = load_config(model)
    with pytest.raises(StartupError, match=rf"{file.name} is damaged"):
        load_parameters(
            [file],
            config,
            "float32",
            Packing(Kernels(1), 8),
            pause=lambda: os.truncate(file, file.stat().st_size // 2),
        )


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has none"
)
def test_packed_weights_are_in_huge_pages(tiny_model: Tiny) -> None:
    folder = tiny_model("llama")
    for weight in packed_parameters(folder, 8).packed.values():
        assert "hg" in flags_of_memory_at(weight.blocks.ctypes.data)


def flags_of_memory_at(address: int) -> list[str]:
    """VmFlags of the mapping that has it; see proc(5)."""
    is_wanted = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            begin, end = (int(number, 16) for number in first.split("-"))
            is_wanted = begin <= address < end
        elif first == "VmFlags:" and is_wanted:
            return rest
    raise AssertionError(f"no memory at {address:x}")
