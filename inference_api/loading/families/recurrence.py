"""`RecurrentConfig`: layers that keep one state of fixed size for each row."""

from dataclasses import dataclass
from typing import Literal

MixerKind = Literal["short_conv", "delta", "mamba2", "kimi_delta"]


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Layers with a recurrent mixer, which keeps one state of fixed size for all tokens of a row,
    instead of attention or besides it.

    A causal convolution, separate for each channel, covers a token and the `conv_width - 1` tokens
    before it. `short_conv` (LFM2) projects its input to three vectors: one gates the convolution's
    input, another its result. `delta` takes the convolution's results as queries, keys and values;
    each value head keeps a matrix, updated by the gated delta rule. `mamba2` does the same without
    the rule's correction, and in `kimi_delta` each channel of a key decays by itself: see
    `src/delta.h`.
    """

    kind: MixerKind
    layers: frozenset[int]  # layer numbers in the checkpoint
    conv_dim: int
    conv_width: int
    has_bias: bool = False  # the projections around it have biases
    has_conv_bias: bool = False
    # Not for `short_conv`. Neighbouring value heads share a head of queries and keys.
    heads: int = 0
    key_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    is_tiled: bool = False  # value heads that share are interleaved instead
    has_log_decays: bool = True  # the checkpoint has logarithms of how fast heads forget
    has_norm: bool = True  # the output of `mamba2` is normalised
    norm_eps: float | None = None  # epsilon of the norms of heads' outputs; None: as other norms
    is_doubled: bool = False  # corrections are doubled, so that they may change a state's sign
    has_norms_before: bool = False  # these layers have norms before mixer and MLP, not after
    is_beside_attention: bool = False  # attention reads the same input, and the outputs are added
    gate_rank: int = 0  # size of the latents from which `kimi_delta` computes gates and decays

    @property
    def in_floats(self) -> int:
        """Floats of a token that the mixer reads, besides those of `step_rows`."""
        others = {
            "short_conv": 2 * self.conv_dim,
            "delta": 0,
            "mamba2": self.heads,
            "kimi_delta": self.heads * self.key_dim,
        }
        return self.conv_dim + self.heads * self.value_dim + others[self.kind]

    @property
    def step_rows(self) -> int:
        """Rows of the exact projection, which gives each head's correction and step length."""
        if self.kind == "kimi_delta":
            return self.heads + 2 * self.gate_rank
        return 2 * self.heads if self.kind == "delta" else 0

    @property
    def out_columns(self) -> int:
        """Size of the mixer's output for a token."""
        return self.conv_dim if self.kind == "short_conv" else self.heads * self.value_dim

    @property
    def tail_floats(self) -> int:
        """Floats of the earlier inputs that the next token's convolution reads."""
        return (self.conv_width - 1) * self.conv_dim

    @property
    def log_floats(self) -> int:
        """Floats that a layer's mixer reads for a token; these are logged for a guess."""
        return self.in_floats + self.step_rows

    @property
    def layer_floats(self) -> int:
        """Floats of a layer's state: earlier inputs, and the heads' matrices."""
        return self.tail_floats + self.heads * self.key_dim * self.value_dim
