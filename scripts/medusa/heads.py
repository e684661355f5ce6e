"""The heads, which map a hidden state to logits of the tokens that they can name."""

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor, nn

GUESSING_AT_ONCE = 1024  # positions for which guesses are computed at once

Variant = Literal["shared", "full"]
"""`shared` heads use the model's output matrix; `full` heads have their own."""


class Heads(nn.Module):
    """Head k maps the hidden state of position t to logits of the token at position t + 2 + k.

    A head is one residual block and an output matrix: h + SiLU(A h + b), then W (Cai et al. 2024,
    arXiv 2401.10774, section 2.1). At first the block is the identity, and W the model's matrix.
    """

    def __init__(self, output: Tensor, num_heads: int, variant: Variant) -> None:
        """`output` [tokens, hidden] is the model's output matrix, for the tokens to name."""
        super().__init__()
        hidden_size = output.shape[1]
        self.weight = nn.Parameter(torch.zeros(num_heads, hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(num_heads, hidden_size))
        self.is_full = variant == "full"
        outputs = [output] * (num_heads if self.is_full else 1)
        self.outputs = nn.Parameter(torch.stack(outputs), requires_grad=self.is_full)

    @property
    def num_heads(self) -> int:
        return len(self.weight)

    def forward(self, hidden: Tensor, head: int) -> Tensor:
        """Returns one head's logits [positions, tokens] for `hidden` [positions, hidden]."""
        block = F.silu(F.linear(hidden, self.weight[head], self.bias[head]))
        return F.linear(hidden + block, self.outputs[head if self.is_full else 0])

    @torch.inference_mode()
    def guesses(self, hidden: Tensor, count: int) -> Tensor:
        """Returns the likeliest tokens of every head, best first, [positions, heads, count]."""
        found = []
        for part in hidden.split(GUESSING_AT_ONCE):
            states = part.to(self.weight)
            best = [self(states, head).topk(count).indices for head in range(self.num_heads)]
            found.append(torch.stack(best, dim=1).cpu())
        return torch.cat(found)
