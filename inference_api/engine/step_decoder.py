"""Decoders of a step, beneath `KernelRunner`: of this process's layers, or of several ranks'."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inference_api.kernels.interface import Floats
from inference_api.runner import Hidden, RowStep


class Outputs(NamedTuple):
    """The outputs of a decoder's step."""

    logits: Floats  # [draws, vocab]: of what follows the tokens that draw, in their order
    hidden: Sequence[Hidden | None]  # one for each row; see `RowResult`


class StepDecoder(Protocol):
    """Decode thread only. Tokens, rows and slots are trusted to be in range."""

    def forward(self, rows: Sequence[RowStep]) -> Outputs:
        """Write the keys and values of all tokens; see `ModelRunner.step`."""
