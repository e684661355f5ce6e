"""Heads are read in every published form, and whatever does not fit is refused by name."""

import hashlib
import json
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from inference_api.errors import StartupError
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import ModelConfig
from inference_api.loading.drafting import PICKLE, WEIGHTS, find_heads
from inference_api.loading.heads import read_heads, tokenizer_sha256
from inference_api.settings import EMBEDDED_MODEL
from scripts.convert_heads import convert

Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_config(EMBEDDED_MODEL)


def heads(config: ModelConfig, num_heads: int = 2, num_layers: int = 1, vocab: int = 0) -> Tensors:
    """Random ones; `vocab` tokens of their own, or the model's output head."""
    width, made = config.hidden_size, Tensors()
    for head in range(num_heads):
        for layer in range(num_layers):
            made[f"{head}.{layer}.linear.weight"] = torch.randn(width, width)
            made[f"{head}.{layer}.linear.bias"] = torch.randn(width)
        if vocab:
            made[f"{head}.{num_layers}.weight"] = torch.randn(vocab, width)
    return made


def written(folder: Path, tensors: Tensors, **description: object) -> Path:
    save_file(tensors, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("vocab", [0, 40])
def test_pickles_are_converted_and_the_prefix_makes_no_difference(
    config: ModelConfig, tmp_path: Path, num_layers: int, vocab: int
) -> None:
    """How many there are is counted: the configuration is wrong."""
    tensors = heads(config, 3, num_layers, vocab)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    written(first, tensors, medusa_num_heads=5)
    merged = {f"medusa_head.{name}": tensor.half() for name, tensor in tensors.items()}
    torch.save(merged, second / PICKLE)
    with pytest.raises(StartupError, match=rf"can run code .* scripts.convert_heads {second}"):
        read_heads(second, config)
    convert(second, second)
    for folder, typical in ((first, 0.0), (second, 1e-3)):
        file = read_heads(folder, config)
        assert [len(layers) for layers in file.weights] == [num_layers] * 3
        assert file.biases[2][-1].dtype == np.float32
        expected = tensors[f"2.{num_layers - 1}.linear.weight"]
        assert np.allclose(file.weights[2][-1], expected, rtol=typical, atol=typical)
        assert (file.outputs is None) == (vocab == 0)
        assert (file.paths, file.token_ids, file.tokenizer_sha256) == ([], None, None)


def test_ours_add_tokens_a_tree_and_the_tokenizer(config: ModelConfig, tmp_path: Path) -> None:
    tensors = {**heads(config), "draft_token_ids": torch.tensor([1, 5, 30])}
    choices = [[1], [0, 1], [0], [0, 1, 2]]
    folder = written(tmp_path, tensors, medusa_choices=choices, tokenizer_sha256="abc")
    file = read_heads(folder, config)
    assert file.token_ids is not None
    assert file.token_ids.tolist() == [1, 5, 30]
    assert file.paths == [(1,), (0,), (0, 1)]  # there is no third head
    assert file.tokenizer_sha256 == "abc"


FAULTS = {
    "another width": ("0.0.linear.weight", torch.zeros(8, 8), "has to be"),
    "a missing bias": ("1.0.linear.bias", None, "it lacks 1.0.linear.bias"),
    "integers": ("0.0.linear.bias", torch.zeros(1, dtype=torch.int64), "has to be"),
    "no numbers": ("0.0.linear.bias", torch.full((1,), torch.nan), "not finite"),
    "a token that is none": ("draft_token_ids", torch.tensor([1, 10**6]), "ascend between 0"),
    "tokens out of order": ("draft_token_ids", torch.tensor([5, 1]), "ascend"),
    "no tokens": ("draft_token_ids", torch.tensor([], dtype=torch.int64), "ascend"),
    "tokens that are no integers": ("draft_token_ids", torch.tensor([1.5]), "ascend"),
    "tokens in a square": ("draft_token_ids", torch.tensor([[1]]), "ascend"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_does_not_fit_is_named(config: ModelConfig, tmp_path: Path, case: str) -> None:
    name, value, fault = FAULTS[case]
    tensors = heads(config)
    if value is None:
        del tensors[name]
    elif name in tensors and value.ndim == 1:
        tensors[name] = value.expand(config.hidden_size).clone()
    else:
        tensors[name] = value
    with pytest.raises(StartupError, match=fault):
        read_heads(written(tmp_path, tensors), config)


def test_larger_vocabulary_than_the_models_is_refused(config: ModelConfig, tmp_path: Path) -> None:
    folder = written(tmp_path, heads(config, 1, 1, config.vocab_size + 1))
    with pytest.raises(StartupError, match=f"the model has {config.vocab_size}"):
        read_heads(folder, config)


def test_token_beyond_the_heads_own_vocabulary_is_refused(
    config: ModelConfig, tmp_path: Path
) -> None:
    tensors = {**heads(config, 1, 1, 40), "draft_token_ids": torch.tensor([3, 40])}
    with pytest.raises(StartupError, match="between 0 and 39"):
        read_heads(written(tmp_path, tensors), config)


@pytest.mark.parametrize("choices", ["all", [[0], [1, 0]], [[]], [[-1]], [[0.5]], [0], [[0]] * 300])
def test_tree_that_is_none_is_refused(config: ModelConfig, tmp_path: Path, choices: object) -> None:
    folder = written(tmp_path, heads(config), medusa_choices=choices)
    with pytest.raises(StartupError, match="medusa_choices has to be"):
        read_heads(folder, config)


class Runs:
    """Would run a command where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    torch.save({"0.0.linear.weight": Runs(mark)}, tmp_path / PICKLE)
    with pytest.raises(UnpicklingError):
        convert(tmp_path, tmp_path)
    assert not mark.exists()


def test_file_too_large_is_not_read(config: ModelConfig, tmp_path: Path) -> None:
    with (tmp_path / WEIGHTS).open("wb") as file:
        file.truncate(10**13)  # holes only
    with pytest.raises(StartupError, match="and heads of this model at most"):
        read_heads(tmp_path, config)


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"PK\3\4", b"\x80\x02}q\x00."])
def test_damaged_file_is_refused(config: ModelConfig, tmp_path: Path, content: bytes) -> None:
    (tmp_path / WEIGHTS).write_bytes(content)
    with pytest.raises(StartupError, match="is damaged or incomplete"):
        read_heads(tmp_path, config)


def test_heads_are_those_named_or_the_models_own(tmp_path: Path) -> None:
    assert find_heads(tmp_path, None) is None
    (tmp_path / "medusa").mkdir()
    (tmp_path / "medusa" / PICKLE).touch()
    assert find_heads(tmp_path, None) == tmp_path / "medusa"
    assert find_heads(tmp_path, str(tmp_path)) == tmp_path
    with pytest.raises(StartupError, match="no folder here"):
        find_heads(tmp_path, str(tmp_path / "nowhere"))


def test_tokenizer_is_known_by_its_file() -> None:
    content = (EMBEDDED_MODEL / "tokenizer.json").read_bytes()
    assert tokenizer_sha256(EMBEDDED_MODEL) == hashlib.sha256(content).hexdigest()
