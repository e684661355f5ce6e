"""The messages from rank 0 to the other ranks: a kind, integers and activations; never code.

The network of the ranks is private. Nevertheless, numbers with which the kernels would access
memory out of bounds are refused.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_api.runner import RowStep

PART_TOKENS = 128  # most tokens in one part of a step, except for prompts on CUDA
PROMPT_TOKENS = 1024  # most tokens in one message
ROW_NUMBERS = 5  # integers that describe a row, apart from its tree
MAX_NUMBERS = (ROW_NUMBERS + 1) * PART_TOKENS  # most integers of any kind of message
PLACED_PAGES = MAX_NUMBERS - 3  # most pages in one message


class Kind(IntEnum):
    LOAD = 1  # the model's fingerprint, number of pages, then the split
    STEP = 2  # `step_numbers` and the residual; returns to rank 0 with the states that it needs
    KEEP = 3  # row, start, indices of accepted tokens
    COPY_PAGE = 4  # source page, target page
    PING = 5  # returns to rank 0 when all ranks have handled the messages before it
    STOP = 6
    PLACE = 7  # row, group of layers, index of the first page, the pages
    FIT = 8  # number of pages, then the split; returns to rank 0 with the pages that fit all ranks
    PROMPT = 9  # like STEP, for tokens of one row's prompt, which are computed at once


class Message(NamedTuple):
    kind: Kind
    numbers: Sequence[int] = ()
    states: NDArray[np.float32] | None = None  # [tokens, hidden size]


class BadMessage(Exception):
    """A message that rank 0 of this version never sends."""


def step_numbers(rows: Sequence[RowStep]) -> list[int]:
    """Returns for each row: its index, start, number of tokens, number of tokens whose states are
    not returned, whether it is a tree, and then the parents of a tree's tokens."""
    numbers: list[int] = []
    for each in rows:
        num_tokens, is_tree = len(each.token_ids), each.parents is not None
        numbers += (each.row, each.start, num_tokens, each.returned.start, is_tree)
        numbers += each.parents or ()
    return numbers


def read_step(
    numbers: Sequence[int], max_rows: int, max_seq_len: int
) -> tuple[list[RowStep], list[int]]:
    """Returns the rows of the part of a step that these numbers describe, without token ids, and
    the tokens whose states the last rank returns: indices among the tokens of all rows. Raises
    BadMessage."""
    rows: list[RowStep] = []
    returned: list[int] = []
    num_tokens, rest = 0, iter(numbers)
    for row in rest:
        start, count, first, is_tree = _next_numbers(rest, ROW_NUMBERS - 1)
        if not (0 <= row < max_rows and start >= 0 and 1 <= count <= max_seq_len - start):
            raise BadMessage(f"{count} tokens at {start} of row {row}")
        if not 0 <= first <= count:
            raise BadMessage(f"{first} tokens of {count} are not given back")
        parents = _next_numbers(rest, count) if is_tree else None
        if any(not -1 <= parent < token for token, parent in enumerate(parents or ())):
            raise BadMessage("a tree whose tokens follow later ones")
        rows.append(RowStep(row, start, range(count), parents=parents))
        returned += range(num_tokens + first, num_tokens + count)
        num_tokens += count
    if not rows:
        raise BadMessage("a step without rows")
    return rows, returned


def _next_numbers(numbers: Iterator[int], count: int) -> Sequence[int]:
    taken = [number for _, number in zip(range(count), numbers, strict=False)]
    if len(taken) != count:
        raise BadMessage("a step that is cut short")
    return taken
