"""`RecurrentConfig`: what layers have that remember one state of a row."""

from dataclasses import dataclass
from typing import Literal

MixerKind = Literal["short_conv", "delta", "mamba2"]


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Layers that remember of all tokens one state of a fixed size, instead of attention or beside
    it.

    A causal convolution, each channel by itself, sees a token and the `conv_width - 1` before it.
    `short_conv` (LFM2) multiplies its inputs by one part of what it is made of, and its results by
    another. `delta` makes queries, keys and values of its results, of which each head of values
    keeps a matrix by the gated delta rule, `mamba2` without its correction: see `src/delta.h`.
    """

    kind: MixerKind
    layers: frozenset[int]  # numbers of the checkpoint
    conv_dim: int
    conv_width: int
    has_bias: bool = False  # the projections around it have biases
    has_conv_bias: bool = False
    # Not of `short_conv`. Heads of values that follow each other share those of queries and keys.
    heads: int = 0
    key_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    is_tiled: bool = False  # heads of values that share take turns instead
    has_log_decays: bool = True  # the checkpoint has logarithms of how fast heads forget
    has_norm: bool = True  # what `mamba2` makes is normalised
    is_beside_attention: bool = False  # which reads the same, and what both make is added

    @property
    def in_rows(self) -> int:
        """Rows of what makes the mixer's inputs."""
        rows = {"short_conv": 2 * self.conv_dim, "delta": 0, "mamba2": self.heads}
        return self.conv_dim + self.heads * self.value_dim + rows[self.kind]

    @property
    def out_columns(self) -> int:
        """Size of what the mixer makes of a token."""
        return self.conv_dim if self.kind == "short_conv" else self.heads * self.value_dim

    @property
    def tail_floats(self) -> int:
        """Size of the inputs that the next token's convolution sees."""
        return (self.conv_width - 1) * self.conv_dim

    @property
    def log_floats(self) -> int:
        """Size of what a layer's mixer reads of a token: all that is noted of a guess."""
        return self.in_rows + (2 * self.heads if self.kind == "delta" else 0)

    @property
    def layer_floats(self) -> int:
        """Size of a layer's state: these inputs, and the heads' matrices."""
        return self.tail_floats + self.heads * self.key_dim * self.value_dim
