"""`StepDecoder`: runs the steps of `KernelRunner`, with this process's layers or several ranks'."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inference_api.kernels.interface import Floats
from inference_api.runner import Hidden, RowStep


class Outputs(NamedTuple):
    """The outputs of a decoder's step."""

    logits: Floats  # [draws, vocab], in the order of the tokens that draw
    hidden: Sequence[Hidden | None]  # for each row; see `RowResult`


class StepDecoder(Protocol):
    """Decode thread only. Does not check that tokens, rows and slots are in range."""

    def forward(self, rows: Sequence[RowStep]) -> Outputs:
        """Run a step, and write the keys and values of all its tokens: see `ModelRunner.step`."""
