"""Describes a step's tokens for its operations, on the host and in the form that `ops` defines."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference_api.engine.cuda import ops
from inference_api.runner import MAX_TREE_TOKENS, RowStep

Lines = NDArray[np.int32]
BACK = np.arange(MAX_TREE_TOKENS, dtype=np.int32)[:, None]


def token_inputs(rows: Sequence[RowStep], firsts: Sequence[int]) -> Lines:
    """Returns the inputs for each row's tokens from the index in `firsts` on, without ways to draw:
    [STEP_LINES, tokens]."""
    ids: list[int] = []
    positions: list[int] = []
    numbers: list[int] = []
    trees: list[tuple[int, Lines]] = []  # first column and slots of each
    for row, first in zip(rows, firsts, strict=True):
        if row.parents is None and len(row.token_ids) == first + 1:  # a shortcut for most rows
            ids.append(row.token_ids[-1])
            positions.append(row.start + first)
            numbers.append(row.row)
            continue
        if row.parents is not None:
            trees.append((len(ids), _tree_slots(row.start, row.parents)[:, first:]))
        ids += row.token_ids[first:]
        positions += row.positions[first:]
        numbers += [row.row] * (len(row.token_ids) - first)
    inputs = np.zeros((ops.STEP_LINES, len(ids)), np.int32)
    inputs[: ops.SLOTS] = ids, positions, numbers
    inputs[ops.SLOTS : ops.NUM_LINES] = np.maximum(inputs[ops.POSITIONS] - BACK, 0)
    for begin, slots in trees:
        inputs[ops.SLOTS : ops.NUM_LINES, begin : begin + slots.shape[1]] = slots
    return inputs


def _tree_slots(start: int, parents: Sequence[int]) -> Lines:
    """Returns the slots of each token's last positions: its own, then its parent's slots."""
    slots = np.empty((MAX_TREE_TOKENS, len(parents)), np.int32)
    before = np.maximum(start - 1 - BACK[:, 0], 0)
    for index, parent in enumerate(parents):
        slots[0, index] = start + index
        if parent >= 0:
            slots[1:, index] = slots[:-1, parent]
        else:
            slots[1:, index] = before[:-1] if start else index
    return slots


def prompt_inputs(row: RowStep, begin: int, end: int) -> Lines:
    """Returns the inputs for a prompt's tokens `begin` to `end`: [PROMPT_LINES, tokens]."""
    inputs = np.full((ops.PROMPT_LINES, end - begin), row.row, np.int32)
    inputs[ops.IDS] = row.token_ids[begin:end]
    inputs[[ops.POSITIONS, ops.SLOTS]] = np.arange(row.start + begin, row.start + end)
    return inputs


def absent(num_lines: int, num_tokens: int, spare_slot: int) -> Lines:
    """Returns the inputs for absent tokens, which write to a slot that nobody reads."""
    inputs = np.zeros((num_lines, num_tokens), np.int32)
    inputs[ops.POSITIONS] = -1
    inputs[ops.SLOTS] = spare_slot
    return inputs
