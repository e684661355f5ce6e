"""Rounds a matrix to the bytes of a form.

Without activations, each block gets the nearest numbers that the search finds. With activations it
is rounded as in GPTQ (Frantar et al. 2023, arXiv 2210.17323): input by input. Inputs that are still
to be rounded are changed to compensate for the errors of those before them, as far as the inputs
correlate in the activations.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scripts.quantize.blocks import Bytes, stored
from scripts.quantize.grids import Floats, Form, searched

WEIGHTS_AT_A_TIME = 2**17  # bounds memory, so that it fits into the processor's cache
DAMPING = 0.01  # this share of the mean moment is added to each, so unseen inputs have one, too


class Feedback(NamedTuple):
    """How inputs compensate for each other's errors: the upper Cholesky factor of the inverse of
    their second moments, [inputs, inputs]."""

    factor: Floats

    @classmethod
    def of(cls, moments: NDArray[np.float64]) -> Self | None:
        """Returns the feedback; None if all activations were 0."""
        diagonal = moments.diagonal()
        if not diagonal.any():
            return None
        damped = moments + np.eye(len(moments)) * (DAMPING * diagonal.mean())
        inverse = np.linalg.inv(damped)
        lower = np.linalg.cholesky((inverse + inverse.T) / 2 / np.abs(inverse).max())
        return cls(lower.T.astype(np.float32))

    @property
    def importance(self) -> Floats:
        """The weight of each input's error, after later inputs have compensated for it."""
        squares = self.factor.diagonal() ** -2
        importance: Floats = squares / squares.mean()
        return importance


def rounded(form: Form, weights: Floats, feedback: Feedback | None = None) -> Bytes:
    """Returns the bytes [rows, ...] of finite `weights` [rows, inputs]."""
    inputs_at_a_time = weights.shape[1] if feedback is None else form.block_inputs
    count = max(1, WEIGHTS_AT_A_TIME // inputs_at_a_time)
    parts = (weights[first : first + count] for first in range(0, len(weights), count))
    return np.concatenate(
        [
            _nearest(form, rows) if feedback is None else _fed_back(form, rows, feedback)
            for rows in parts
        ]
    )


def _nearest(form: Form, weights: Floats) -> Bytes:
    blocks = weights.reshape(-1, form.block_inputs)
    grid = searched(form, blocks, np.ones(form.block_inputs, np.float32))
    return stored(grid, grid.nearest(form.grouped(blocks))).reshape(len(weights), -1)


def _fed_back(form: Form, weights: Floats, feedback: Feedback) -> Bytes:
    factor, importance, size = feedback.factor, feedback.importance, form.block_inputs
    left = np.ascontiguousarray(weights.T)  # [inputs, rows]: the numbers still to be rounded
    written = []
    for begin in range(0, len(left), size):
        end = begin + size
        grid = searched(form, np.ascontiguousarray(left[begin:end].T), importance[begin:end])
        group_inputs = size // form.num_groups
        steps, floors = (each[..., 0].T for each in (grid.steps, grid.floors))  # [groups, rows]
        inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps != 0)
        values, errors = np.empty((2, size, len(weights)), np.float32)
        for at in range(size):
            group, now = at // group_inputs, left[begin + at]
            values[at] = form.nearest((now + floors[group]) * inverse[group])
            error = now - (values[at] * steps[group] - floors[group])
            errors[at] = error / factor[begin + at, begin + at]
            later = slice(begin + at + 1, end)
            left[later] -= factor[begin + at, later, None] * errors[at]
        left[end:] -= factor[begin:end, end:].T @ errors
        written.append(stored(grid, form.grouped(np.ascontiguousarray(values.T))))
    return np.concatenate(written, 1)
