"""Gemma 3n and 4, whose layers have several shapes: rows in company, drafts, caches."""

from dataclasses import replace

import numpy as np
import pytest

from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions
from inference_api.runner import RowStep, place_own_pages
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.engine.tiny_models import CONTEXT, GEMMAS
from tests.inference_api.engine.whole_logits import (
    PROMPT,
    ROWS,
    logits_of,
    runner_of,
    steps_of,
)

every_model = pytest.mark.parametrize("name", GEMMAS)


@every_model
def test_nothing_depends_on_company_nor_on_what_is_read_of_others(
    name: str, tiny_model: Tiny
) -> None:
    """A prompt whose last token alone draws is computed for that one where it can be."""
    runner = runner_of(tiny_model(name))
    whole = logits_of(runner, row=2)
    together = [RowStep(row, 0, PROMPT[: 60 + row], (ANY_DRAW,)) for row in range(ROWS)]
    logits = runner.decoder.forward(together).logits
    np.testing.assert_array_equal(logits, whole[59 : 59 + ROWS])
    rests = [steps_of(row, PROMPT, [60 + row])[1] for row in range(ROWS)]
    rests[1] = RowStep(1, 61, PROMPT[61:])  # draws nothing
    logits = runner.decoder.forward(rests).logits
    expected = [whole[60:], whole[62:], whole[63:]]
    np.testing.assert_array_equal(logits, np.concatenate(expected))


@every_model
def test_a_draft_that_is_kept_leaves_what_its_tokens_would(name: str, tiny_model: Tiny) -> None:
    """Of two branches the second is right: it moves, in every layer, to behind the token."""
    runner = runner_of(tiny_model(name))
    whole = logits_of(runner, row=0)
    runner.step([RowStep(1, 0, PROMPT[:29])])
    for start in range(29, 65, 4):
        tokens = (PROMPT[start], 3, 4, *PROMPT[start + 1 : start + 4])
        branches = ((), (3,), (3, 4), *(tokens[3 : 3 + count] for count in (1, 2, 3)))
        draws = [replace(ANY_DRAW, branch=branch) for branch in branches]
        step = RowStep(1, start, tokens, draws, parents=(-1, 0, 1, 0, 3, 4))
        logits = runner.decoder.forward([step]).logits
        np.testing.assert_array_equal(logits[[0, 3, 4, 5]], whole[start : start + 4])
        runner.keep(step, (0, 3, 4, 5))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_smaller_cache_costs_little(dtype: str, tiny_model: Tiny) -> None:
    """Its pages have as many bytes as the widest group of layers, scales among them."""
    folder = tiny_model("gemma4-one-projection")
    options = EngineOptions(
        dtype="float32", max_rows=ROWS, max_seq_len=CONTEXT, kv_cache_dtype=dtype
    )
    runner = KernelRunner(folder, options)
    runner.load()
    place_own_pages(runner)
    expected = logits_of(runner_of(folder), row=1)
    for row in range(ROWS):
        found = logits_of(runner, row, [40, 41])
        assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_layers_that_share_keys_and_values_have_no_pages(tiny_model: Tiny) -> None:
    footprint = runner_of(tiny_model("gemma4-shared")).footprint
    assert [(group.window, [*group.layers]) for group in footprint.groups] == [
        (7, [0, 2]),
        (None, [1]),
    ]
    # Keys and values of two layers with 2 heads of 24, or of one with 2 of 48.
    assert footprint.page_bytes == 2 * 32 * 2 * 2 * 24 * 4


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"device": "cuda"}, "different shapes, not there yet on CUDA; set DEVICE=cpu"),
        ({"layers": LayerRange(0, 2)}, "different shapes, which cannot be split; unset SPLIT"),
    ],
)
def test_where_it_cannot_be_served_it_is_said(
    changes: dict[str, object], fault: str, tiny_model: Tiny
) -> None:
    options = EngineOptions(max_rows=1, **changes)  # type: ignore[arg-type]
    for folder in map(tiny_model, ("gemma4", "gemma3n")):
        assert fault in "".join(check_one(folder, options))
        with pytest.raises(StartupError, match=fault):
            (CudaRunner if options.device == "cuda" else KernelRunner)(folder, options)
