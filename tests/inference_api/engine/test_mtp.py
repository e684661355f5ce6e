"""Layers that guess further tokens against transformers' `MtpModel`, and rows against others."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.kernels.interface import Floats
from inference_api.loading.families.read import read_config
from inference_api.loading.files import has_mtp
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, RowToken, place_own_pages
from lab.models.gguf_hybrids import write_hybrid_gguf
from tests.inference_api.engine.mtp_models import MODELS, WEIGHTS, NemotronMtp, make_mtp_model
from tests.inference_api.engine.tiny_models import CONTEXT, GEMMAS, HYBRIDS, VOCAB_SIZE
from tests.inference_api.engine.tiny_models import MODELS as TINY_MODELS

PROMPT = Random(3).choices(range(3, VOCAB_SIZE), k=71)
DRAW = Draw(SamplingParams(temperature=0.0), (0,), ())
EVERY_MODEL = TINY_MODELS | HYBRIDS | GEMMAS
Made = tuple[Path, PreTrainedModel, MtpModel | NemotronMtp]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    @cache
    def make(name: str) -> Made:
        folder = tmp_path_factory.mktemp(name)
        with torch.inference_mode(False):
            return folder, *make_mtp_model(name, folder)

    return make


def loaded(model: Path, with_mtp: bool = True) -> KernelRunner:
    options = EngineOptions(
        dtype="float32", max_rows=3, max_seq_len=CONTEXT, num_guesses=3, has_mtp=with_mtp
    )
    runner = KernelRunner(model, options)
    runner.load()
    place_own_pages(runner)
    return runner


def read(runner: KernelRunner, row: int, tokens: Sequence[int], cuts: Sequence[int] = ()) -> None:
    """Step through all but the last token, in chunks that end at `cuts`."""
    ends = [*cuts, len(tokens) - 1]
    for start, end in zip((0, *ends), ends, strict=False):
        runner.step([RowStep(row, start, tokens[start:end])])


def logits_behind(runner: KernelRunner, row: int, position: int, token_id: int) -> Floats:
    assert runner.mtp is not None
    assert runner.mtp.knows(row, position)
    assert not runner.mtp.knows(row, position - 1)
    logits: Floats = runner.mtp.logits_behind([RowToken(row, position, token_id)])[0].copy()
    return logits


def expected(main: PreTrainedModel, mtp: MtpModel | NemotronMtp, guesses: Sequence[int]) -> Floats:
    """Logits behind PROMPT and behind each of these guesses."""
    with torch.inference_mode():
        prompt = torch.tensor([PROMPT])
        hidden = main(prompt, output_hidden_states=True).hidden_states[-1][:, :-1]
        found = []
        for count in range(1 + len(guesses)):
            following = torch.tensor([[*PROMPT[1:], *guesses[:count]]])
            positions = torch.arange(following.shape[1])[None]
            results = mtp.forward_layer(0, hidden, positions, None, input_ids=following)
            found.append(mtp.shared_head(results[0, -1]).numpy())
            hidden = torch.cat([hidden, results[:, -1:]], dim=1)
    return np.stack(found)


@pytest.mark.parametrize(
    ("name", "cuts"), [(name, ((), (5, 12, 60))[at % 2]) for at, name in enumerate(MODELS)]
)
def test_guesses_are_those_of_transformers(
    name: str, cuts: Sequence[int], made: Callable[[str], Made]
) -> None:
    folder, main, mtp = made(name)
    runner, guesses = loaded(folder), [17, 250]
    read(runner, 1, PROMPT, cuts)
    tokens = [PROMPT[-1], *guesses]
    found = [
        logits_behind(runner, 1, len(PROMPT) - 1 + at, token) for at, token in enumerate(tokens)
    ]
    np.testing.assert_allclose(np.stack(found), expected(main, mtp, guesses), atol=1e-4, rtol=0)


def test_guesses_are_among_the_first_tokens(
    made: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = made("qwen3.5")
    found = []
    for least in (VOCAB_SIZE, 64):
        monkeypatch.setattr("inference_api.engine.cpu.mtp.MIN_GUESSED", least)
        runner = loaded(folder)
        read(runner, 0, PROMPT)
        found.append(logits_behind(runner, 0, len(PROMPT) - 1, PROMPT[-1]))
    assert np.array_equal(found[0][:64], found[1])


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe"])
def test_a_gguf_file_guesses_the_same(
    name: str, made: Callable[[str], Made], tmp_path: Path
) -> None:
    folder, _, _ = made(name)
    found = []
    for model in (folder, write_hybrid_gguf(folder, tmp_path / "model.gguf")):
        runner = loaded(model)
        read(runner, 0, PROMPT)
        found.append(logits_behind(runner, 0, len(PROMPT) - 1, PROMPT[-1]))
    np.testing.assert_allclose(found[1], found[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["qwen3.5", "glm4-moe"])
@pytest.mark.parametrize("num_right", [0, 1, 2])
def test_it_goes_on_from_what_is_kept(
    name: str, num_right: int, made: Callable[[str], Made]
) -> None:
    """Also where it has guessed itself: these states give way to the model's."""
    runner = loaded(made(name)[0])
    read(runner, 0, PROMPT)
    read(runner, 1, PROMPT[:41])
    start = 40
    while start + 3 < len(PROMPT):
        guesses = (*PROMPT[start + 1 : start + 1 + num_right], *[3] * (2 - num_right))
        for at, token in enumerate((PROMPT[start], *guesses)):
            logits_behind(runner, 1, start + at, token)
        draws = [Draw(DRAW.sampling, (0,), (), guesses[:count]) for count in range(3)]
        step = RowStep(1, start, (PROMPT[start], *guesses), draws)
        runner.step([step])
        runner.keep(step, range(1 + num_right))
        start += 1 + num_right
    rest = RowStep(1, start, PROMPT[start:-1])
    if rest.token_ids:
        runner.step([rest])
    end, last = len(PROMPT) - 1, PROMPT[-1]
    one, other = (logits_behind(runner, row, end, last) for row in (0, 1))
    np.testing.assert_allclose(other, one, atol=1e-5, rtol=0)


def test_who_takes_over_pages_has_what_was_read_of_them(made: Callable[[str], Made]) -> None:
    runner = loaded(made("glm4-moe")[0])
    read(runner, 0, PROMPT)
    runner.place(1, 0, 0, runner._cache.tables[0, 0, :2].tolist())
    runner.step([RowStep(1, 64, PROMPT[64:-1])])
    end, last = len(PROMPT) - 1, PROMPT[-1]
    one, other = (logits_behind(runner, row, end, last) for row in (0, 1))
    np.testing.assert_array_equal(one, other)


def test_a_row_that_begins_anew_forgets(made: Callable[[str], Made]) -> None:
    runner = loaded(made("qwen3.5")[0])
    assert runner.mtp is not None
    read(runner, 2, PROMPT[:30])
    assert runner.mtp.knows(2, 29)
    place_own_pages(runner)
    assert not runner.mtp.knows(2, 29)


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_models_of_all_families_may_lack_it(name: str) -> None:
    family, values = EVERY_MODEL[name]
    described = getattr(transformers, f"{family}Config")(**deepcopy(values)).to_dict()
    config = read_config(described)
    assert not has_mtp({}, config)


def test_where_it_is_not_loaded_nothing_is_taken_for_it(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    folder, *_ = made("qwen3.5")
    with_it, without = loaded(folder), loaded(folder, with_mtp=False)
    assert (with_it.has_mtp, without.has_mtp, without.mtp) == (True, False, None)
    of_pages = [each.footprint.page_bytes for each in (with_it, without)]
    assert of_pages[0] * 2 == of_pages[1] * 3  # of two layers with attention, and one
    assert with_it.footprint.weights_bytes > without.footprint.weights_bytes
    tensors = load_file(folder / WEIGHTS)
    del tensors["mtp.norm.weight"]
    save_file(tensors, tmp_path / WEIGHTS)
    for file in folder.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert not loaded(tmp_path).has_mtp
