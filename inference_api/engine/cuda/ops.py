"""The operations that layers consist of. `torch_ops` implements them for any device.

Besides these, a step launches only products with weights that are not packed
(`parameters.of_torch`), the choice of experts (`mlp.Mixture`) and draws (`sampler.sample`).

A step's tokens are described by one integer tensor [NUM_LINES, n] on the device: their ids, their
positions, their rows, and the slots of the last positions up to the token's own, its own first.
Plain, drafted and tree tokens, and those of a scored prompt, are described alike. Before the first
position, the slot of that position is repeated. In a prompt, slots equal positions, so its tensor
ends with the token's own slot: [PROMPT_LINES, n].
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
STEP_LINES = NUM_LINES + 2 * WAYS  # float64 numbers take two lines of int32 each
LOGITS, STATES, LIKELIEST = range(3)  # numbers of a step's outputs

MAX_PRODUCT_TOKENS = 128
"""Most tokens of a step in which products with packed weights give each token independent bits."""


class Affine(NamedTuple):
    """The weight and the bias of a norm."""

    weight: Tensor
    bias: Tensor | None


class LayerHeads(NamedTuple):
    """The parameters of one layer's heads."""

    layer: int
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    sinks: Tensor | None  # [heads]


class TokenOperations(Protocol):
    """Attention for the tokens of one step, in any layer."""

    def place_heads(self, qkv: Tensor, heads: LayerHeads) -> Tensor:
        """Normalise and turn queries and keys, and write keys and values to their slots. Returns
        the queries [n, heads, head_dim]. `qkv` [n, all heads * head_dim] is whole or in parts (see
        `Linear`), and may be overwritten."""

    def attend(self, queries: Tensor, heads: LayerHeads) -> Tensor:
        """Returns each token's attention to positions up to its own, [n, heads * head_dim]."""


class Operations(Protocol):
    """The operations of one model's layers over one cache. A token's bits depend on the token, the
    contents of its row and, unless `is_of_any_size`, the number of tokens in the step, absent ones
    included. An absent token has a position below 0, and nobody reads its results."""

    @property
    def is_of_any_size(self) -> bool:
        """Whether steps may have any number of tokens, and need only one length because each token
        attends up to itself. Their tensors may have more rows, whose outputs have no meaning."""

    def norm_add(
        self, x: Tensor, update: Tensor | None, update_norm: Affine | None, norm: Affine | None
    ) -> tuple[Tensor, Tensor]:
        """Returns the residual `x` plus `update` (whole or in parts) normalised by `update_norm`;
        and this sum, normalised by `norm`. All are [n, hidden]; a norm of None changes nothing."""

    def gate(self, up: Tensor) -> Tensor:
        """Returns an MLP's activations [n, ffn]. `up` is the output of its first map, whole or in
        parts: [n, ffn], or [n, 2 ffn] if gated, with the gates in the first half."""

    def multiply(self, x: Tensor, weights: Sequence[Panels], bias: Tensor | None) -> Tensor:
        """Apply a `Linear` whose outputs are those of all `weights`, in their order."""

    def embed(self, ids: Tensor, table: Panels) -> Tensor:
        """Returns rows of a packed embedding, [n, hidden]."""

    def tokens(self, inputs: Tensor, lengths: Sequence[int]) -> TokenOperations:
        """Returns operations on tokens of any rows, at positions below the last of `lengths`, which
        ascend."""

    def prompt(self, inputs: Tensor, length: int) -> TokenOperations:
        """Returns operations on tokens of one row's prompt, at positions below `length`."""
