"""The operations that a layer is made of. `torch_ops` has them for any device.

These and three that are found elsewhere are all that a step launches: products by weights that
are not packed (`parameters.of_torch`), the choice of experts (`mlp.Mixture`) and draws
(`sampler.sample`).

A step's tokens are described by one tensor [NUM_LINES, n] of integers on the device: their ids,
their positions, the rows they are in, and the slots of the last positions up to their own, the
own one first. A plain token, one of a draft or of a tree, and one of a prompt that is scored are
all the same thing. Before the first position, the slot of that one is repeated. Tokens of a prompt
lie at their positions, so that their tensor ends with the own slot: [PROMPT_LINES, n].
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from inference_api.engine.cuda.panels import Panels
from inference_api.runner import MAX_TREE_TOKENS

IDS, POSITIONS, ROWS, SLOTS = range(4)
PROMPT_LINES = SLOTS + 1
NUM_LINES = SLOTS + MAX_TREE_TOKENS
WAYS = 5  # numbers that say how a token is drawn: see `draws.DrawWays`
STEP_LINES = NUM_LINES + 2 * WAYS  # which follow, in 32 bits each
LOGITS, STATES, LIKELIEST = range(3)  # what a step puts out for each of its tokens

MOST_MULTIPLIED = 128
"""Tokens of a step whose products with packed weights have bits that depend on no other token."""


class Affine(NamedTuple):
    """The weight and the bias of a norm."""

    weight: Tensor
    bias: Tensor | None


class LayerHeads(NamedTuple):
    """What belongs to the heads of one layer."""

    layer: int
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    sinks: Tensor | None  # [heads]


class TokenOperations(Protocol):
    """The tokens of one step, as all layers place and attend from them."""

    def place_heads(self, qkv: Tensor, heads: LayerHeads) -> Tensor:
        """Queries [n, heads, head_dim], of queries, keys and values [n, all heads * head_dim],
        whole or in parts, which it may overwrite: normalised and turned, keys and values written to
        their slots."""

    def attend(self, queries: Tensor, heads: LayerHeads) -> Tensor:
        """Each token to all positions up to its own: [n, heads * head_dim]."""


class Operations(Protocol):
    """What the layers of one model do over one cache. A token's bits depend on that token, what its
    row holds and, unless steps are of any size, how many tokens the step has, whether they have a
    meaning or not. One without has a position below 0; what is computed of it nobody reads."""

    @property
    def is_of_any_size(self) -> bool:
        """Whether steps may have any number of tokens, and one length: each token attends as far
        as itself. What is given to them may have more, whose outputs have no meaning."""

    def norm_add(
        self, x: Tensor, made: Tensor | None, made_norm: Affine | None, norm: Affine | None
    ) -> tuple[Tensor, Tensor]:
        """The residual `x` with what was `made` of it, whole or in parts, itself normalised by
        `made_norm`; and the sum normalised by `norm`. All are [n, hidden]; a norm that is None
        changes nothing."""

    def gate(self, up: Tensor) -> Tensor:
        """What an MLP makes of what it made first, whole or in parts: [n, ffn] of the same or,
        gated, of [n, 2 ffn], the first half of which lets the second pass."""

    def multiply(self, x: Tensor, weights: Sequence[Panels], bias: Tensor | None) -> Tensor:
        """A `Linear` of these weights, whose outputs are in their order."""

    def embed(self, ids: Tensor, table: Panels) -> Tensor:
        """Rows of a packed embedding, [n, hidden]."""

    def tokens(self, inputs: Tensor, lengths: Sequence[int]) -> TokenOperations:
        """Tokens of which something follows; `lengths` ascend, the last is above every position."""

    def prompt(self, inputs: Tensor, length: int) -> TokenOperations:
        """Tokens of one row's prompt, at positions below `length`."""
