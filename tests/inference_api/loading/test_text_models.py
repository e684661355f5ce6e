"""The text model of one that sees too is found under either of its names."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_api.errors import StartupError
from inference_api.loading.checkpoint import load_config
from inference_api.loading.files import read_headers
from inference_api.loading.options import EngineOptions
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.tiny_models import EOS, write_tokenizer
from tests.inference_api.parameters import numbers_of

Rename = Callable[[str], str]
RENAMES: list[Rename] = [
    lambda name: f"language_model.{name}",
    lambda name: name.replace("model.", "model.language_model."),
]


def write_whole(text: Path, folder: Path, rename: Rename) -> None:
    config = {"model_type": "gemma3", "text_config": json.loads((text / "config.json").read_text())}
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": EOS}))
    tensors = {rename(name): each for name, each in load_file(text / "model.safetensors").items()}
    tensors["vision_tower.embeddings.weight"] = torch.zeros(3, 5)
    save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder)


@pytest.mark.parametrize("rename", RENAMES)
def test_its_weights_are_those_of_the_text_model(
    rename: Rename, tiny_model: Tiny, tmp_path: Path
) -> None:
    text = tiny_model("gemma3-capped")
    write_whole(text, tmp_path, rename)
    assert check_one(str(tmp_path), EngineOptions(device="cpu", max_rows=1)) == []
    assert load_config(tmp_path) == replace(load_config(text), family="gemma3")
    expected, found = (numbers_of(folder) for folder in (text, tmp_path))
    make_gguf(tmp_path, tmp_path / "model.gguf", "F32")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_two_tensors_of_the_same_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    names = ("model.norm.weight", "language_model.model.norm.weight")
    save_file({name: torch.zeros(3) for name in names}, file)
    with pytest.raises(StartupError, match="two tensors"):
        read_headers([file], "llama")
