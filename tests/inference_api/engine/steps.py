"""Steps as tests make them, of a runner or straight of its decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.cuda.decoder import Decoder
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Drawn, ModelRunner, RowStep

GREEDY = SamplingParams(temperature=0.0)
ANY_DRAW = Draw(GREEDY, (0,), ())
AnyDecoder = KernelDecoder | Decoder


def prefill(decoder: AnyDecoder, row: int, start: int, token_ids: Sequence[int]) -> None:
    """Write the keys and values of one row's next tokens."""
    decoder.forward([RowStep(row, start, token_ids)])


def decode(
    decoder: AnyDecoder, token_ids: Sequence[int], rows: Sequence[int], positions: Sequence[int]
) -> Tensor:
    """Write one token of each row; logits [len(rows), vocab] of what follows, to keep."""
    steps = [
        RowStep(row, position, (token_id,), (ANY_DRAW,))
        for token_id, row, position in zip(token_ids, rows, positions, strict=True)
    ]
    return torch.as_tensor(decoder.forward(steps).logits).clone()


def draw_next(
    runner: ModelRunner,
    row: int,
    prompt: Sequence[int],
    generated: Sequence[int],
    sampling: SamplingParams = GREEDY,
) -> Drawn:
    """A decode step of one row, whose cache has all but the last token."""
    whole = [*prompt, *generated]
    draw = Draw(sampling, prompt, generated, prompt_ids=frozenset(prompt))
    (result,) = runner.step([RowStep(row, len(whole) - 1, whole[-1:], (draw,))])
    (drawn,) = result.drawn
    return drawn
