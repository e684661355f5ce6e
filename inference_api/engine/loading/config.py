"""`ModelConfig`: a decoder's shape, which `families` reads from a config.json. Loads no torch."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

DEFAULT_MAX_SEQ_LEN = 2048
CACHE_ALIGNMENT_TOKENS = 16  # see kv_cache: rows then begin on cache-line borders
KEYS_AND_VALUES = 2

NormKind = Literal["rms", "layer"]
RopeKind = Literal["default", "linear", "llama3"]
TensorNames = Literal["llama", "falcon"]
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding; the fields after `factor` matter for `llama3` scaling only."""

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


class LayerRange(NamedTuple):
    """Layers `begin` to `end` of a model that several processes share."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer and the arithmetic of its layers. Immutable."""

    vocab_size: int
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm: NormKind
    norm_eps: float
    activation: str
    is_mlp_gated: bool
    has_qkv_bias: bool
    has_out_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool  # each query and key head is normalised before rope
    is_parallel: bool  # attention and MLP read the same residual, and are added together
    has_mlp_norm: bool  # False: the MLP of a parallel layer shares the attention's norm
    is_head_tied: bool  # the output head is the embedding
    windows: tuple[int | None, ...]  # per layer: how many positions a token sees, None = all
    attention_scale: float
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float
    rope: RopeConfig
    tensor_names: TensorNames
    eos_token_ids: frozenset[int]
    first_layer: int = 0  # of these, in the checkpoint
    has_ends: bool = True  # embedding, final norm and output head
    family: str = ""  # its name, for people: nothing is decided by it

    def part(self, layers: LayerRange) -> Self:
        """What a process has that runs these layers; the first one's has both ends too."""
        return replace(
            self,
            num_layers=layers.end - layers.begin,
            windows=self.windows[layers.begin : layers.end],
            first_layer=layers.begin,
            has_ends=layers.begin == 0,
        )

    @property
    def num_groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_qkv_heads(self) -> int:
        return self.num_heads + 2 * self.num_kv_heads

    def context(self, max_seq_len: int | None) -> int:
        """Tokens a user row holds when MAX_SEQ_LEN is `max_seq_len`."""
        return max_seq_len or min(self.max_positions, DEFAULT_MAX_SEQ_LEN)

    def kv_cache_bytes(self, max_rows: int, max_seq_len: int, vector_bytes: int) -> int:
        """Size of the static KV cache, as `KVCache` allocates it, with keys and values of
        `vector_bytes` for each head."""
        token_bytes = KEYS_AND_VALUES * self.num_kv_heads * vector_bytes
        return self.num_layers * max_rows * cache_capacity(max_seq_len) * token_bytes


def cache_capacity(max_seq_len: int) -> int:
    """Tokens allocated per row: `max_seq_len`, rounded up for alignment."""
    return -(-max_seq_len // CACHE_ALIGNMENT_TOKENS) * CACHE_ALIGNMENT_TOKENS
