"""GGUF files of random models mean the same to llama.cpp, where that is installed."""

import random
from pathlib import Path

import pytest

from lab.models.gguf_file import make_gguf
from lab.peers.check_gguf import MAX_TOKENS, common_tokens, llama_cpp_answers, our_answers
from lab.peers.install import LLAMA_CPP
from tests.inference_api.engine.tiny_models import VOCAB_SIZE, make_model

NUM_PROMPTS, PROMPT_TOKENS = 2, 12
LEAST_SHARE = 0.5  # of the tokens, before a near tie parts two answers; see `check_gguf`
# What llama.cpp reads: heads of one size, and every fourth layer attends.
DELTA = {
    "linear_key_head_dim": 32,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
# Tiny models with what is changed for llama.cpp; not Phi with a window, which it leaves out.
MODELS: dict[str, dict[str, object]] = {
    "gemma3-capped": {},
    "glm4": {},
    "llama-yarn-rope": {},
    "olmo2": {},
    "phi3-long-rope": {},
    "smollm3": {},
    "falcon-h1": {},
    "falcon-h1-norm": {},
    "granite4": {},
    "granite4-moe": {},
    "kimi-linear": {"n_group": 1, "topk_group": 1},
    "lfm2": {"conv_bias": False},
    "lfm2-moe": {},
    "nemotron": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    },
    "nemotron-dense": {},
    "qwen3-next": DELTA | {"decoder_sparse_step": 1},
    "qwen3.5": DELTA,
    "qwen3.5-moe": DELTA,
}


@pytest.mark.skipif(
    not LLAMA_CPP.python.exists(),
    reason="llama.cpp is not installed; python -m lab.peers.check_gguf installs it",
)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_answers_are_llama_cpps(name: str, tmp_path: Path) -> None:
    make_model(name, tmp_path, **MODELS[name])
    file = tmp_path / "model.gguf"
    make_gguf(tmp_path, file, "F32")
    rng = random.Random(name)
    prompts = [rng.choices(range(3, VOCAB_SIZE), k=PROMPT_TOKENS) for _ in range(NUM_PROMPTS)]
    pairs = zip(our_answers(file, "none", prompts), llama_cpp_answers(file, prompts), strict=True)
    num_same = sum(common_tokens(ours, theirs) for ours, theirs in pairs)
    assert num_same > LEAST_SHARE * NUM_PROMPTS * MAX_TOKENS
