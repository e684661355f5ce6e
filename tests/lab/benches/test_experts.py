"""What the bench of a mixture says that an answer has to read."""

from pathlib import Path

import pytest

from inference_api.loading.checkpoint import load_config
from lab.benches.engine import experts
from lab.benches.serve.peers import Load
from lab.models.random_model import Shape, make_random_model

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 32, 2, 1, 32, 512
NUM_EXPERTS, CHOSEN = 8, 2
LAYERS = 2
DENSE = LAYERS * HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS) + HIDDEN * VOCAB
EXPERT = 3 * HIDDEN * FFN
INT8_BYTES = 1 + 2 / 32  # of a weight, with its share of a group's scale
ROUTER_BYTES = LAYERS * 4 * 32 * HIDDEN  # float32, of whole panels


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "experts_read"),
    [(1, 1, 2 + 2), (1, 4, 8 + 8), (2, 1, 8 * (1 - 0.75**2) + 2), (1000, 1, 8 + 2)],
)
def test_an_answer_reads_the_experts_that_its_tokens_choose(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prompt_tokens: int,
    max_tokens: int,
    experts_read: float,
) -> None:
    shape = Shape(
        hidden=HIDDEN,
        ffn=FFN,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=KV_HEADS,
        vocab_size=VOCAB,
        head_dim=HEAD_DIM,
        num_experts=NUM_EXPERTS,
        experts_per_token=CHOSEN,
    )
    make_random_model(shape, tmp_path)
    monkeypatch.setattr(experts, "SHAPE", shape)
    read = experts.answer_bytes(
        load_config(tmp_path), "int8", Load("", 1, prompt_tokens, max_tokens)
    )
    expected = max_tokens * (DENSE * INT8_BYTES + ROUTER_BYTES) + experts_read * EXPERT * INT8_BYTES
    assert read == pytest.approx(expected)
