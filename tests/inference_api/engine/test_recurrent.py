"""Rows of models with recurrent layers, in company, copied and with wrong guesses."""

import random
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions
from inference_api.runner import RowStep
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.engine.tiny_models import HYBRIDS
from tests.inference_api.engine.whole_logits import (
    GUESSES,
    PROMPT,
    ROWS,
    logits_of,
    runner_of,
    steps_of,
)

every_hybrid = pytest.mark.parametrize("name", HYBRIDS)


@every_hybrid
def test_logits_are_the_same_bits_in_company(name: str, tiny_model: Tiny) -> None:
    runner = runner_of(tiny_model(name))
    alone = logits_of(runner, row=2)
    chunks = {row: steps_of(row, PROMPT, (7 * (row + 1), 50)) for row in range(ROWS)}
    found: dict[int, list[Floats]] = {row: [] for row in chunks}
    for together in zip(*chunks.values(), strict=True):
        logits, at = runner.decoder.forward(together).logits.copy(), 0
        for step in together:
            found[step.row].append(logits[at : at + len(step.token_ids)])
            at += len(step.token_ids)
    for own in found.values():
        np.testing.assert_array_equal(np.concatenate(own), alone)


@every_hybrid
def test_tokens_of_a_row_need_not_be_together(name: str, tiny_model: Tiny) -> None:
    runner = runner_of(tiny_model(name))
    alone = logits_of(runner, row=0)
    steps = [chunk for row in range(ROWS) for chunk in steps_of(row, PROMPT, (60, 61))]
    together = runner.decoder.forward(sorted(steps, key=lambda each: each.start)).logits
    for row in range(ROWS):
        chunks = [
            together[60 * row :][:60],
            together[60 * ROWS + row :][:1],
            together[61 * ROWS + 16 * row :][:16],
        ]
        np.testing.assert_array_equal(np.concatenate(chunks), alone)


@every_hybrid
def test_a_copied_state_goes_on_in_another_row(name: str, tiny_model: Tiny) -> None:
    runner = runner_of(tiny_model(name))
    whole, layout = logits_of(runner, row=0), runner.layout
    [begun, rest] = steps_of(3, PROMPT, [45])
    runner.step([begun])
    logits_of(runner, row=1)
    for source, target in zip(layout.states_of(3), layout.states_of(1), strict=True):
        runner.copy_page(source, target)
    logits_of(runner, row=3)  # the same keys and values, and another state by now
    resumed = RowStep(1, rest.start, rest.token_ids, rest.draws)
    np.testing.assert_array_equal(runner.decoder.forward([resumed]).logits, whole[45:])


@every_hybrid
def test_wrong_guesses_leave_no_trace(name: str, tiny_model: Tiny) -> None:
    """None of them, all of them, and so many as come first."""
    runner = runner_of(tiny_model(name))
    counts = cycle(random.Random(name).sample(range(GUESSES + 1), GUESSES + 1))
    whole = logits_of(runner, row=0)
    runner.step([RowStep(1, 0, PROMPT[:30])])
    start = 30
    while start + GUESSES < len(PROMPT):
        num_right = next(counts)
        right = PROMPT[start + 1 : start + 1 + num_right]
        guesses = (*right, *[3] * (GUESSES - num_right))
        draws = [replace(ANY_DRAW, branch=guesses[:count]) for count in range(GUESSES + 1)]
        step = RowStep(1, start, (PROMPT[start], *guesses), draws)
        logits, end = runner.decoder.forward([step]).logits, start + 1 + num_right
        np.testing.assert_array_equal(logits[: 1 + num_right], whole[start:end])
        runner.keep(step, range(1 + num_right))
        start = end


def test_a_part_of_a_step_ends_before_a_row_that_guesses(tiny_model: Tiny) -> None:
    """The kernels take 512 tokens at once."""
    runner = runner_of(tiny_model("lfm2"), max_rows=6)
    begun = RowStep(5, 0, PROMPT[:30])
    runner.step([begun])
    guesses = PROMPT[31 : 31 + GUESSES]
    draws = [replace(ANY_DRAW, branch=guesses[:count]) for count in range(GUESSES + 1)]
    guessing = RowStep(5, 30, PROMPT[30 : 31 + GUESSES], draws)
    alone = runner.decoder.forward([guessing]).logits.copy()
    for before in range(512 - GUESSES - 1, 514):
        sizes = [100, 100, 100, 100, before - 400]
        others = [RowStep(row, 0, [7] * size) for row, size in enumerate(sizes)]
        runner.step([begun])
        np.testing.assert_array_equal(runner.decoder.forward([*others, guessing]).logits, alone)


def test_only_layers_with_attention_have_pages(tiny_model: Tiny) -> None:
    footprint = runner_of(tiny_model("lfm2")).footprint
    [group] = footprint.groups
    assert group.layers == [1]
    assert footprint.page_bytes == 2 * 2 * 32 * 16 * 4  # keys and values of 2 heads of 16
    assert footprint.state_bytes == 2 * 2 * 64 * 4  # 2 layers see 2 tokens before one, of 64 each
    assert footprint.layout.state_pages == 1
    assert footprint.log_bytes == GUESSES * 2 * 3 * 64 * 4
    of_pages = (footprint.num_pages + ROWS) * footprint.page_bytes
    assert footprint.cache_bytes == of_pages + ROWS * footprint.log_bytes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"device": "cuda"}, "recurrent layers, not there yet on CUDA; set DEVICE=cpu"),
        ({"layers": LayerRange(0, 2)}, "recurrent layers, which cannot be split; unset SPLIT"),
    ],
)
def test_where_recurrent_layers_cannot_be_served_it_is_said(
    changes: dict[str, object], fault: str, tiny_model: Tiny
) -> None:
    folder = tiny_model("lfm2")
    options = EngineOptions(max_rows=1, **changes)  # type: ignore[arg-type]
    assert fault in "".join(check_one(folder, options))
    with pytest.raises(StartupError, match=fault):
        (CudaRunner if options.device == "cuda" else KernelRunner)(folder, options)
