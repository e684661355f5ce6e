"""Decoders of a step, beneath `EngineRunner`: kernels, torch, steps of fixed shape."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from inference_api.runner import RowStep


class Outputs(NamedTuple):
    """The outputs of a decoder's step."""

    logits: Tensor  # [draws, vocab] float32: of what follows the tokens that draw, in their order
    hidden: Sequence[Tensor | None]  # one for each row; see `RowResult`


class StepDecoder(Protocol):
    """Decode thread only. Tokens, rows and slots are trusted to be in range."""

    def warm_up(self) -> None:
        """Prepare what depends on the device; a prompt has been run before. Overwrites nothing."""

    def forward(self, rows: Sequence[RowStep]) -> Outputs:
        """Write the keys and values of all tokens; see `ModelRunner.step`."""
