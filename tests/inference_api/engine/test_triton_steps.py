"""Steps of any number of tokens, with operations by Triton, against torch's and against themselves.

`test_triton_ops` says what runs where there is no CUDA.
"""

import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial

import numpy as np
import pytest
import torch

from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.graphs import token_sizes
from inference_api.engine.cuda.ops import MAX_PRODUCT_TOKENS, Operations
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.loading.options import EngineOptions
from inference_api.runner import RowStep
from lab.device.launches import TritonRunner
from tests.inference_api.engine.test_graphs import TREES, draft, of_only, one_token
from tests.inference_api.engine.tiny_models import CONTEXT, folder_of, make_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, NUM_GUESSES = 3, 1
Load = Callable[..., CudaRunner]
# Models whose norms, heads, windows and turns differ; packed ones, below, have sinks and experts.
NAMES = ("gemma3-capped", "olmo3")


@pytest.fixture(autouse=True)
def _inference_mode(interpreter: None) -> Iterator[None]:
    with torch.inference_mode(), np.errstate(all="ignore"):
        yield


ONE_LAYER = "llama of one layer"  # where all layers are alike, more of them take longer


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A runner over a cache of random numbers, the same for both kinds."""
    one_layer = tmp_path_factory.mktemp("one-layer")
    make_model("llama", one_layer, num_hidden_layers=1)

    def load(kind: type[CudaRunner], name: str, quantization: str = "none") -> CudaRunner:
        options = EngineOptions(
            device=DEVICE,
            dtype="float32",
            max_rows=ROWS,
            max_seq_len=CONTEXT,
            num_guesses=NUM_GUESSES,
            quantization=quantization,
        )
        runner = kind(one_layer if name == ONE_LAYER else folder_of(name), options)
        runner.load()
        entries = runner._cache.entries
        entries.copy_(torch.randn(entries.shape, generator=torch.Generator().manual_seed(1)))
        return runner

    return load


def steps_of_rows() -> Sequence[RowStep]:
    rng = random.Random(3)
    return [draft(rng, 2, 40, TREES[0][: 1 + NUM_GUESSES]), one_token(0, CONTEXT - 1, 7)]


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_caches_equal_those_by_torch(name: str, loaded: Load) -> None:
    ours, theirs = (loaded(kind, name) for kind in (TritonRunner, CudaRunner))
    assert_equal_steps(ours, theirs, steps_of_rows(), 3e-5)


def assert_equal_steps(
    ours: CudaRunner, theirs: CudaRunner, steps: Sequence[RowStep], tolerance: float
) -> None:
    actual, expected = (each.decoder.forward(steps) for each in (ours, theirs))
    close = partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)
    close(actual.logits, expected.logits)
    close(*(each._cache.entries[..., :CONTEXT, :] for each in (ours, theirs)))


def test_tokens_have_the_same_bits_in_steps_of_any_size(loaded: Load) -> None:
    """A drafted one, alone and beside others, and a row's only one."""
    decoder = loaded(TritonRunner, ONE_LAYER).decoder
    rows = steps_of_rows()
    expected, (states, others) = decoder.forward(rows)
    assert states is not None
    last = one_token(2, 41, rows[0].token_ids[1])
    assert decoder._num_tokens == ROWS * (1 + NUM_GUESSES)
    for step in (decoder._of_tokens[0], decoder._of_tokens[-1]):
        of_one_size = copy(decoder)
        of_one_size._of_tokens = [step]
        logits, hidden = of_one_size.forward([last])
        assert torch.equal(logits[0], expected[1])
        assert torch.equal(of_only(hidden)[0], states[1])
    logits, hidden = decoder.forward(rows[1:])
    assert torch.equal(logits[0], expected[-1])
    assert others is not None
    assert torch.equal(of_only(hidden), others)


# A head in 8 bits, experts that are stacked, layers without a residual between, and latents.
@pytest.mark.parametrize(
    ("name", "quantization"),
    [("falcon-7b", "int4"), ("gpt-oss", "int8"), ("deepseek-v3", "int8")],
)
def test_packed_weights_give_the_logits_and_caches_of_their_numbers(
    name: str, quantization: str, loaded: Load
) -> None:
    ours, theirs = (loaded(kind, name, quantization) for kind in (TritonRunner, CudaRunner))
    assert_equal_steps(ours, theirs, steps_of_rows()[:1], 1e-4)


def test_a_token_has_the_same_bits_by_packed_weights_in_steps_of_any_size(loaded: Load) -> None:
    decoder = loaded(TritonRunner, ONE_LAYER, "int4").decoder
    sizes = [step.num_tokens for step in decoder._of_tokens]
    assert sizes == token_sizes(MAX_PRODUCT_TOKENS)
    logits, (states, _) = decoder.forward(steps_of_rows())
    assert states is not None
    last = one_token(2, 41, steps_of_rows()[0].token_ids[1])
    for step in (decoder._of_tokens[0], decoder._of_tokens[sizes.index(8)]):
        of_one_size = copy(decoder)
        of_one_size._of_tokens = [step]
        alone, hidden = of_one_size.forward([last])
        assert torch.equal(alone[0], logits[1])
        assert torch.equal(of_only(hidden)[0], states[1])


def test_sizes_double_up_to_the_most() -> None:
    assert token_sizes(32) == [1, 2, 4, 8, 16, 32]
    assert token_sizes(18) == [1, 2, 4, 8, 16, 18]
    assert token_sizes(1) == [1]


def test_where_triton_does_not_run_torchs_operations_serve(
    loaded: Load,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "inference_api.engine.cuda.triton_ops", None)
    runner = loaded(CudaRunner, ONE_LAYER)
    runner.device = "cuda"
    tried: list[Operations] = []

    def make(ops: Operations) -> Decoder:
        tried.append(ops)
        return runner.decoder

    rope = Rope(runner._config, CONTEXT, torch.device("cpu"), torch.float32)
    with caplog.at_level(logging.WARNING):
        assert runner._decoder(make, rope) is runner.decoder
    assert [type(each) for each in tried] == [TorchOps]
    assert "Triton does not run here" in caplog.text
