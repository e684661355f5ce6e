"""Served models with a layer that guesses further tokens: what is right is accepted and counted,
and no guess changes the text."""

from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.loading.options import EngineOptions
from inference_api.settings import ModelSettings
from inference_api.speculation.scheduler import DraftScheduler
from inference_api.speculation.sources import draft_sources
from tests.inference_api.core.stepped_server import (
    CONTEXT,
    NAME,
    Server,
    check_all_guesses_are_right,
    text,
)
from tests.inference_api.engine.mtp_models import WEIGHTS, make_mtp_model
from tests.inference_api.engine.tiny_models import VOCAB_SIZE, make_model

MAX_GUESSES = 4


@pytest.fixture(scope="module", params=["qwen3.5", "glm4-moe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mtp")
    make_mtp_model(request.param, made, max_position_embeddings=CONTEXT)
    return made


def make_certain(folder: Path) -> dict[int, int]:
    """Have each token follow another, for the model and for its layer. Returns which."""
    tensors = load_file(folder / WEIGHTS)
    tokens = list(range(3, VOCAB_SIZE))
    Random(1).shuffle(tokens)
    following = dict(zip(tokens, (*tokens[1:], tokens[0]), strict=True))
    for name, tensor in tensors.items():  # no layer adds anything
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "norm.weight")):
            tensors[name] = torch.zeros_like(tensor)
    embedding = torch.randn(tensors["lm_head.weight"].shape)
    embedding /= embedding.square().mean(dim=1, keepdim=True).sqrt()
    tensors["model.embed_tokens.weight"] = embedding
    tensors["lm_head.weight"] = torch.zeros_like(embedding)
    for token, next_token in following.items():
        tensors["lm_head.weight"][next_token] = embedding[token]
    width = embedding.shape[1]
    tensors["mtp.fc.weight"] = torch.cat([torch.eye(width), torch.zeros(width, width)], dim=1)
    tensors["mtp.pre_fc_norm_embedding.weight"].zero_()
    save_file(tensors, folder / WEIGHTS)
    return following


def test_a_layer_that_is_always_right_gives_all_tokens_that_it_may_guess(tmp_path: Path) -> None:
    make_mtp_model("qwen3.5", tmp_path, max_position_embeddings=CONTEXT)
    following = make_certain(tmp_path)
    server = Server(tmp_path, speculation="mtp", speculation_tokens=MAX_GUESSES)
    check_all_guesses_are_right(server, following, MAX_GUESSES)


def prompts() -> list[tuple[int, ...]]:
    """Some begin alike, some repeat themselves."""
    beginning = text(1, 70)
    return [beginning + text(each, 9 + 20 * each) for each in range(3)] + [text(9, 12) * 4]


def test_guesses_change_no_text(folder: Path) -> None:
    plain = Server(folder, prefix_reuse=False)
    server = Server(folder, speculation="mtp", speculation_tokens=MAX_GUESSES)
    asked = prompts()
    for turn in range(3):
        said = [plain.answers([prompt])[0] for prompt in asked]
        assert server.answers(asked) == said
        asked = [
            prompt + answer + text(turn, 3) for prompt, answer in zip(asked, said, strict=True)
        ]
    totals = server.backend.snapshot.totals
    assert 0 <= totals.accepted_tokens < totals.drafted_tokens
    assert totals.reused_tokens > 0


def test_beside_another_source_it_changes_no_text(folder: Path) -> None:
    """Trees of both where no layer is recurrent, else one of their chains."""
    plain, server = Server(folder), Server(folder, speculation="auto")
    assert server.backend.served[NAME].draft_sources == ("ngram", "mtp")
    scheduler = server.backend.models[NAME].speculation
    assert isinstance(scheduler, DraftScheduler)
    scheduler._tries_all, scheduler._num_to_ask = True, 2
    assert server.answers(prompts()) == plain.answers(prompts())
    assert server.backend.snapshot.totals.drafted_tokens > 0


def test_a_model_without_such_a_layer_is_not_served_by_it(tmp_path: Path) -> None:
    make_model("llama", tmp_path)
    runner = KernelRunner(tmp_path, EngineOptions(max_rows=1, has_mtp=True))
    with pytest.raises(StartupError, match=r"SPECULATION=mtp, but m has no layer .*=auto"):
        draft_sources("m", runner, ModelSettings(speculation="mtp"))
    assert draft_sources("m", runner, ModelSettings(speculation="auto")) == ("ngram",)
