"""Gemma 4's assistants against transformers' own, and served: no guess changes the text."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from inference_api.bundle.check import check_bundle
from inference_api.bundle.residents import needs_of
from inference_api.engine.cpu.assistant import read_assistant
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.engine.local_runner import LocalRunner
from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.kernels.packing import BITS, FLOAT_BITS
from inference_api.loading import hardware
from inference_api.loading.checkpoint import RequestedModel, check_all, load_config
from inference_api.loading.layout import EMBEDDING, HEAD, parameter_forms
from inference_api.loading.memory import GIB
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder
from inference_api.model_loading import describe_models
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, RowToken, place_own_pages
from inference_api.settings import Settings
from inference_api.settings.bundle_file import Bundle
from tests.inference_api.core.stepped_server import CONTEXT as SERVED_CONTEXT
from tests.inference_api.core.stepped_server import (
    NAME,
    Server,
    check_all_guesses_are_right,
    text,
)
from tests.inference_api.engine.assistant_models import make_assistant
from tests.inference_api.engine.tiny_models import CONTEXT, VOCAB_SIZE, make_model

WEIGHTS = "model.safetensors"
PROMPT = Random(3).choices(range(3, VOCAB_SIZE), k=71)
DRAW = Draw(SamplingParams(temperature=0.0), (0,), ())
MAX_GUESSES = 4
Made = tuple[Path, Path, PreTrainedModel, PreTrainedModel]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, of_assistant = (tmp_path_factory.mktemp(name) for name in ("model", "assistant"))
    with torch.inference_mode(False):
        main = make_model("gemma4-shared", folder, max_position_embeddings=SERVED_CONTEXT)
        return folder, of_assistant, main, make_assistant(main, of_assistant)


def loaded(made: Made) -> KernelRunner:
    options = EngineOptions(
        dtype="float32", max_rows=3, max_seq_len=CONTEXT, num_guesses=3, assistant=made[1]
    )
    runner = KernelRunner(made[0], options)
    runner.load()
    place_own_pages(runner)
    return runner


def logits_behind(runner: KernelRunner, row: int, position: int, token_id: int) -> Floats:
    assert runner.mtp is not None
    assert runner.mtp.knows(row, position)
    logits: Floats = runner.mtp.logits_behind([RowToken(row, position, token_id)])[0].copy()
    return logits


def read(runner: KernelRunner, row: int, tokens: Sequence[int]) -> None:
    """Step through all but the last token, the one before it by itself."""
    runner.step([RowStep(row, 0, tokens[:-2])])
    runner.step([RowStep(row, len(tokens) - 2, tokens[-2:-1], (DRAW,))])


def expected(made: Made, prompt: Sequence[int], guesses: Sequence[int]) -> Floats:
    """Logits behind the prompt and behind each of these guesses."""
    *_, main, assistant = made
    found = []
    with torch.inference_mode():
        before = torch.tensor([prompt[:-1]])
        said = main(before, output_hidden_states=True, return_shared_kv_states=True)
        hidden = said.hidden_states[-1][:, -1:]
        for token in (prompt[-1], *guesses):
            embedded = main.get_input_embeddings()(torch.tensor([[token]]))
            drafted = assistant(
                inputs_embeds=torch.cat([embedded, hidden], dim=-1),
                position_ids=torch.tensor([[len(prompt) - 1]]),
                shared_kv_states=dict(said.shared_kv_states),
            )
            hidden = drafted.last_hidden_state
            found.append(drafted.logits[0, 0].numpy())
    return np.stack(found)


@pytest.mark.parametrize("form", ["int8", "float32"])
def test_its_embedding_is_loaded_once_as_its_head(form: str, made: Made) -> None:
    config, _ = read_assistant(made[1], load_config(made[0]))
    forms = parameter_forms(config, 2, (BITS | FLOAT_BITS)[form])
    assert EMBEDDING not in forms
    assert forms[HEAD].shape == (config.vocab_size, config.hidden_size)


@pytest.mark.parametrize("num_tokens", [4, 8, 9, 71])
def test_guesses_are_those_of_transformers(num_tokens: int, made: Made) -> None:
    """Where the window of 7 sees all before, and where it does not."""
    runner, prompt, guesses = loaded(made), PROMPT[:num_tokens], [17, 250, 3]
    read(runner, 1, prompt)
    tokens = enumerate((prompt[-1], *guesses), num_tokens - 1)
    found = np.stack([logits_behind(runner, 1, at, token) for at, token in tokens])
    np.testing.assert_allclose(found, expected(made, prompt, guesses), atol=1e-4, rtol=0)
    again = logits_behind(runner, 1, num_tokens - 1, prompt[-1])
    np.testing.assert_array_equal(again, found[0])


@pytest.mark.parametrize("num_right", [0, 1, 2])
def test_it_goes_on_from_what_is_kept(num_right: int, made: Made) -> None:
    runner = loaded(made)
    start = 40
    runner.step([RowStep(1, 0, PROMPT[:start])])
    assert runner.mtp is not None
    assert not runner.mtp.knows(1, start)  # a prompt's step draws nothing
    while start + 3 < len(PROMPT):
        guesses = (*PROMPT[start + 1 : start + 1 + num_right], *[3] * (2 - num_right))
        draws = [Draw(DRAW.sampling, (0,), (), guesses[:count]) for count in range(3)]
        step = RowStep(1, start, (PROMPT[start], *guesses), draws)
        runner.step([step])
        assert not runner.mtp.knows(1, start + 1)
        runner.keep(step, range(1 + num_right))
        start += 1 + num_right
        read(runner, 0, PROMPT[: start + 1])
        one, other = (logits_behind(runner, row, start, PROMPT[start]) for row in (0, 1))
        np.testing.assert_allclose(other, one, atol=1e-5, rtol=0)
    runner.place(1, 0, 0, runner._cache.tables[0, 1, :1].tolist())
    assert not runner.mtp.knows(1, start)


def prompts() -> list[tuple[int, ...]]:
    beginning = text(1, 70)
    return [beginning + text(each, 9 + 20 * each) for each in range(3)] + [text(9, 12) * 4]


@pytest.mark.parametrize("mode", ["draft", "auto"])
def test_guesses_change_no_text(mode: str, made: Made) -> None:
    folder, assistant, *_ = made
    plain = Server(folder, prefix_reuse=False)
    server = Server(
        folder, speculation=mode, speculation_tokens=MAX_GUESSES, draft_model=str(assistant)
    )
    own = server.backend.served[NAME].draft_sources
    assert own == (("draft",) if mode == "draft" else ("ngram", "draft"))
    asked = prompts()
    for turn in range(2):
        said = [plain.answers([prompt])[0] for prompt in asked]
        assert server.answers(asked) == said
        asked = [
            prompt + answer + text(turn, 3) for prompt, answer in zip(asked, said, strict=True)
        ]
    totals = server.backend.snapshot.totals
    assert mode == "auto" or 0 <= totals.accepted_tokens < totals.drafted_tokens
    assert totals.reused_tokens > 0


def make_certain(folder: Path, of_assistant: Path) -> dict[int, int]:
    """Have each token follow another, for the model and for its assistant. Returns which."""
    tokens = list(range(3, VOCAB_SIZE))
    Random(1).shuffle(tokens)
    following = dict(zip(tokens, (*tokens[1:], tokens[0]), strict=True))
    for each in (folder, of_assistant):
        tensors = load_file(each / WEIGHTS)
        for name, tensor in tensors.items():  # no layer adds anything
            if name.endswith(("o_proj.weight", "down_proj.weight", "per_layer_projection.weight")):
                tensors[name] = torch.zeros_like(tensor)
            elif name.endswith(("norm.weight", "layernorm.weight", "layer_scalar")):
                tensors[name] = torch.ones_like(tensor)
        if each == folder:
            embedding = torch.randn(tensors["model.embed_tokens.weight"].shape)
            embedding /= embedding.square().mean(dim=1, keepdim=True).sqrt()
        tensors["model.embed_tokens.weight"] = embedding
        tensors["lm_head.weight"] = torch.zeros_like(embedding)
        for token, next_token in following.items():
            tensors["lm_head.weight"][next_token] = embedding[token]
        if "pre_projection.weight" in tensors:
            width = embedding.shape[1]
            halves = [torch.eye(width), torch.zeros(width, width)]
            tensors["pre_projection.weight"] = torch.cat(halves, dim=1)
        save_file(tensors, each / WEIGHTS)
    return following


def test_an_assistant_that_is_always_right_gives_all_tokens_that_it_may_guess(
    tmp_path: Path,
) -> None:
    folder, assistant = tmp_path / "model", tmp_path / "assistant"
    untied = {"tie_word_embeddings": False, "max_position_embeddings": SERVED_CONTEXT}
    main = make_model("gemma4-shared", folder, **untied, final_logit_softcapping=None)
    make_assistant(main, assistant, **untied, hidden_size=main.config.hidden_size)
    following = make_certain(folder, assistant)
    server = Server(
        folder,
        speculation="draft",
        speculation_tokens=MAX_GUESSES,
        draft_model=str(assistant),
    )
    check_all_guesses_are_right(server, following, MAX_GUESSES)


def test_an_assistant_of_another_model_is_refused_and_its_weights_count(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, assistant, *_ = made
    make_model("llama", tmp_path)
    options = EngineOptions(max_rows=1, assistant=assistant)
    with pytest.raises(StartupError, match=r"drafts for a model with other sizes.*DRAFT_MODEL"):
        KernelRunner(tmp_path, options)
    with pytest.raises(StartupError, match=r"model_type='gemma4_assistant' .* not supported"):
        KernelRunner(assistant, EngineOptions(max_rows=1))
    with_it, without = loaded(made), KernelRunner(folder, EngineOptions(max_rows=3))
    weights_bytes = [each.footprint.weights_bytes for each in (with_it, without)]
    assert weights_bytes[0] > weights_bytes[1]
    asked = (EngineOptions(dtype="float32", max_rows=3, max_seq_len=CONTEXT), str(assistant))
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 0)
    [counted] = check_all([RequestedModel("m", str(folder), *asked)])
    own_gib = (weights_bytes[0] - weights_bytes[1]) / GIB
    assert f"m's draft model {own_gib:.2f} GiB of weights and 0.00 GiB of KV cache" in counted
    [fault, _] = check_all([RequestedModel("m", str(tmp_path), *asked)])
    assert "drafts for a model with other sizes" in fault


def test_in_a_bundle_it_is_packed_with_the_model_and_counts(made: Made, tmp_path: Path) -> None:
    pair = {"name": "e", "source": str(made[0]), "draft": {"source": str(made[1])}}
    expert = pair | {"quantisation": "none", "context": CONTEXT, "rows": {"min": 2, "max": 3}}
    limits = {"version": 1, "memory_limit": 2**30, "fast_memory_limit": 2**30}
    bundle = Bundle.model_validate({**limits, "experts": [expert]})
    settings = Settings(bundle=bundle, dtype="float32", user_rows=3, speculation_tokens=3)
    checked = check_bundle(bundle, settings)
    assert checked.valid
    assert checked.utilization is not None
    [counted] = checked.utilization.experts
    [member] = describe_models(settings, PackedFolder(tmp_path))
    needs = needs_of(bundle.members[0], member)
    assert needs.weights_bytes + needs.guaranteed_bytes == counted.need_bytes
    assert sum(needs.shared.values()) == needs.weights_bytes
    assert len(needs.shared) == 2
    assert not member.is_packed()
    for _ in range(2):
        assert isinstance(member.load().runner, KernelRunner)
        assert member.is_packed()
        assert len(list(tmp_path.glob("*.hearth"))) == 2
        place_own_pages(member.runner)
        np.testing.assert_array_equal(guesses_of(member.runner), guesses_of(loaded(made)))
        member.unload()
    before = member.stamp()
    (made[1] / WEIGHTS).touch()
    assert member.stamp() != before


def guesses_of(runner: LocalRunner) -> Floats:
    assert isinstance(runner, KernelRunner)
    read(runner, 1, PROMPT)
    return logits_behind(runner, 1, len(PROMPT) - 1, PROMPT[-1])


def test_in_a_bundle_an_assistant_of_another_model_is_refused(made: Made, tmp_path: Path) -> None:
    make_model("llama", tmp_path)
    expert = {"name": "e", "source": str(tmp_path), "draft": {"source": str(made[1])}}
    limits = {"version": 1, "memory_limit": 2**30, "fast_memory_limit": 2**30}
    bundle = Bundle.model_validate({**limits, "experts": [expert]})
    [fault, *_] = check_bundle(bundle, Settings(bundle=bundle)).errors
    assert fault.startswith(f"e: draft.source={made[1]} drafts for a model with other sizes; name")
