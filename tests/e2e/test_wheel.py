"""A wheel, installed with what the extra `serve` brings, serves models of every format: where there
is no compiler, no torch, and nothing of this clone.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from shutil import copytree
from typing import Any

import gguf
import numpy as np
import pytest
import requests
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.kernels.build import library_path, library_stem, units
from inference_api.kernels.library import supported_variants
from lab.kit.servers import ROOT, TIMEOUT_S
from lab.models.gguf_file import make_gguf
from lab.models.random_model import SHAPES, Shape, make_random_model
from tests.e2e.test_make_serve import Stack, assert_curl_line_streams, started
from tests.inference_api.engine.quantised_models import make_mxfp4, make_quantised
from tests.inference_api.engine.tiny_models import make_model
from tests.inference_api.loading.gguf_copies import rewritten
from tests.test_installs import listed, with_dependencies

BLOCK = Shape(hidden=256, ffn=256, layers=2, heads=2, kv_heads=2, vocab_size=512)
SCALES = {GGMLQuantizationType.Q4_K: slice(4), GGMLQuantizationType.Q6_K: slice(-2, None)}
WEIGHTS = ["config.json", "model.safetensors"]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a virtual environment. Its wheel has the kernels that were compiled here."""
    folder = tmp_path_factory.mktemp("installed")
    environment = folder / "venv"
    venv.create(environment)
    (packages,) = environment.glob("lib/*/site-packages")
    link_dependencies(packages)
    python: list[str | Path] = [sys.executable, "-m"]
    install = [*python, "pip", "--python", environment, "install", "--no-deps", "--no-compile"]
    subprocess.run([*install, make_wheel(folder)], timeout=TIMEOUT_S, check=True)
    return environment / "bin"


def link_dependencies(packages: Path) -> None:
    brought = [*listed("requirements-core.txt"), *listed("requirements-serve.txt")]
    here = Path(requests.__file__).parents[1]
    for name in with_dependencies(brought):
        try:
            tops = {file.parts[0] for file in files(name) or ()} - {"..", "__pycache__"}
        except PackageNotFoundError:  # an extra that nobody asked for
            continue
        for top in tops:
            (packages / top).symlink_to(here / top)


def make_wheel(folder: Path) -> Path:
    shipped = folder / f"{library_stem(units())}.so"
    shutil.copy(library_path(), shipped)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    variables = dict(os.environ, HEARTH_KERNELS=str(shipped))
    subprocess.run([*build, str(folder)], cwd=ROOT, timeout=TIMEOUT_S, check=True, env=variables)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_it_answers_the_curl_line_from_another_directory(commands: Path, tmp_path: Path) -> None:
    cwd = tmp_path / "elsewhere"
    cwd.mkdir()
    settings: dict[str, Any] = {"HOME": tmp_path, "PATH": commands}
    with started(tmp_path / "log", (commands / "hearth", "serve"), cwd, **settings) as stack:
        assert_curl_line_streams(stack)
        assert [path.name for path in cwd.glob("*/*")] == ["jwt_secret"]
    assert f" by kernels of {supported_variants()[0]} " in (tmp_path / "log").read_text()
    assert not list(tmp_path.rglob(".cache/hearth/kernels/*.so"))


def q4_k_m(folder: Path) -> Path:
    """Two types by turns, as llama.cpp mixes them; random blocks, as the package writes neither."""
    make_random_model(BLOCK, folder / "random")
    make_gguf(folder / "random", folder / "halves.gguf", "F16")
    random = np.random.default_rng(0)

    def drawn(kind: GGMLQuantizationType, rows: int) -> NDArray[np.uint8]:
        block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
        data = random.integers(0, 256, (rows, block_bytes), np.uint8)
        data[:, SCALES[kind]].view(np.float16)[:] = 0.001
        return data

    def quantise(tensors: dict[str, Any]) -> None:
        matrices = {name: data for name, (data, _) in tensors.items() if data.ndim == 2}
        for name, data in matrices.items():
            is_finer = "attn_v" in name or "ffn_down" in name or name == "output.weight"
            kind = GGMLQuantizationType.Q6_K if is_finer else GGMLQuantizationType.Q4_K
            tensors[name] = (drawn(kind, len(data)), kind)

    return rewritten(folder / "halves.gguf", folder / "model.Q4_K_M.gguf", tensors=quantise)


def folder_of(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        make_random_model(SHAPES["tiny"], folder / "random")
        return make_quantised(folder / "random", name, folder)[0]

    return make


def mxfp4(folder: Path) -> Path:
    make_model("gpt-oss", folder / "gpt-oss", vocab_size=SHAPES["tiny"].vocab_size)
    make_random_model(SHAPES["tiny"], folder / "random")  # for its tokenizer
    copytree(folder / "random", folder / "gpt-oss", ignore=lambda *_: WEIGHTS, dirs_exist_ok=True)
    return make_mxfp4(folder / "gpt-oss", folder)[0]


FORMATS: dict[str, Callable[[Path], Path]] = {
    "gguf": q4_k_m,
    "awq": folder_of("awq"),
    "gptq": folder_of("gptq"),
    "fp8": folder_of("fp8-blocks"),
    "mxfp4": mxfp4,
}


@pytest.fixture(scope="module")
def stack(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Serves a model of each format, by the format's name."""
    folder = tmp_path_factory.mktemp("formats")
    models = [
        {"model": str(make(tmp_path_factory.mktemp(name))), "model_name": name, "user_rows": 2}
        for name, make in FORMATS.items()
    ]
    settings: dict[str, Any] = {"HOME": folder, "PATH": commands, "MODELS": json.dumps(models)}
    with started(folder / "log", (commands / "hearth", "serve"), folder, **settings) as stack:
        yield stack


@pytest.mark.parametrize("name", FORMATS)
def test_it_serves_a_format(name: str, stack: Stack) -> None:
    body = {"model": name, "prompt": "Good", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = requests.post(
        f"{stack.proxy}/v1/completions", json=body, headers=stack.authorization(), timeout=TIMEOUT_S
    ).json()
    assert answer["usage"]["completion_tokens"] == 8, answer


def test_there_is_no_torch(commands: Path) -> None:
    names = ["torch", "transformers", "safetensors", "scipy"]
    asked = "import importlib.util, sys; print([*map(importlib.util.find_spec, sys.argv[1:])])"
    command = [str(commands / "python"), "-c", asked, *names]
    assert subprocess.check_output(command, text=True, timeout=TIMEOUT_S) == f"{4 * [None]}\n"
