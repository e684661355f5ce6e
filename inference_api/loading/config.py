"""`ModelConfig`: a decoder's shape, which `families` reads from a config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from inference_api.kernels.packing import GROUP, Bits
from inference_api.loading.families.recurrence import RecurrentConfig

DEFAULT_MAX_SEQ_LEN = 2048
LATENT_NORM_EPS = 1e-6
PAGE_TOKENS = 32  # positions in a page of what a row remembers: the kernels' blocks
KEYS_AND_VALUES = 2

NormKind = Literal["rms", "layer"]
RopeKind = Literal["default", "linear", "llama3", "longrope", "proportional", "yarn"]
TensorNames = Literal[
    "ernie4_5",
    "falcon",
    "falcon_h1",
    "gemma3",
    "gemma4",
    "glm4",
    "gpt_oss",
    "granite_hybrid",
    "granite_hybrid_split",
    "hunyuan",
    "lfm2",
    "llama",
    "mixtral",
    "nemotron_h",
    "olmo2",
    "phi3",
    "qwen3_5",
    "qwen3_next",
    "qwen3_next_split",
]
Scoring = Literal["softmax", "sigmoid"]
QuantisedForm = Literal["float8", "int8", "packed", "awq", "gptq", "mxfp4"]
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding; `rope` explains the fields after `factor`."""

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    query_growth: float = 0.0  # for each e-fold of original contexts, of turned queries
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    short_factors: tuple[float, ...] = ()  # one for each turned pair
    long_factors: tuple[float, ...] = ()
    magnitude: float = 1.0  # factor of turned dimensions
    num_turned: int | None = None  # pairs that turn, the first ones; None: all


@dataclass(frozen=True, slots=True)
class SwiGluConfig:
    """Clamped gates: gate sigmoid(alpha gate) (up + 1), where gates go up to `limit` and what they
    let pass, up, is within it on both sides."""

    limit: float
    alpha: float


class ExpertGroups(NamedTuple):
    """Groups of neighbouring experts, all of one size: a token's experts are of its best groups.

    A group is as good as the scores of its `num_scored` best experts together.
    """

    num_groups: int
    groups_per_token: int
    num_scored: int


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """A mixture of experts: layers of many MLPs, of which a router chooses a few for each token.

    A token's scores are the softmax or the sigmoid of the router's results, and it takes the
    experts of the largest, the lower index first among equals. Their scores are its shares.
    """

    num_experts: int
    experts_per_token: int
    ffn_size: int  # size of one expert
    is_renormalised: bool  # the shares of a token's experts are made to sum to one
    dense_layers: frozenset[int]  # layers of the checkpoint that have one MLP for all tokens
    has_biases: bool = False  # the router and the experts have biases
    scoring: Scoring = "softmax"
    has_selection_bias: bool = False  # scores have it on them when experts are chosen, only then
    groups: ExpertGroups | None = None
    scale: float = 1.0  # factor of all shares
    shared_ffn_size: int = 0  # size of one more MLP that all tokens pass; 0: there is none
    has_shared_gate: bool = False  # what that MLP counts is a sigmoid
    has_own_norms: bool = False  # router, experts and that MLP have some; and shares, factors
    least_sum: float = 1e-20  # is on a sum that is divided by: of sigmoids it may be 0


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Latent attention (DeepSeek-AI 2024, arXiv 2405.04434).

    Queries, and keys and values together, are made of shorter vectors, latents, which are
    normalised. The turned part of a key is the same in all heads and is not made of the latent.
    """

    query_rank: int | None  # size of the latent; None: queries are made of attention's input
    kv_rank: int
    value_dim: int  # size of a head's value; at most head_dim


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a quantised checkpoint stores a matrix [outputs, inputs]: scale * (value - zero).

    A block of `block` (outputs, inputs) shares a scale, and a zero where `has_zeros`; 0 stands for
    all there are. `quantised` knows the names and shapes of the tensors. Tensors that are not
    quantised keep their usual names.
    """

    form: QuantisedForm
    bits: int
    block: tuple[int, int]
    scale_name: str = "scales"
    has_zeros: bool = False
    zero_offset: int = 0  # number to add to the zeros in the file
    has_order: bool = False  # a tensor says which input belongs to which block

    @property
    def is_plain_int4(self) -> bool:
        """Whether the kernels' groups of 4 bits have room for its values as they are."""
        is_other = self.has_zeros or self.has_order or self.form == "mxfp4"
        return self.bits == 4 and not is_other and self.block[1] % GROUP == 0


class RowFactor(NamedTuple):
    """What some rows of a matrix are multiplied by; no rows: all."""

    rows: int
    factor: float


class LayerShape(NamedTuple):
    """Sizes that layers of one model may have of their own."""

    num_kv_heads: int
    head_dim: int
    value_dim: int  # size of a head's value; at most head_dim
    rotary_dim: int  # number of a head's first dimensions that are turned
    ffn_size: int
    kv_source: int | None = None  # layer whose keys and values it sees; None: it has its own
    has_values: bool = True  # False: what keys are made of are the values too


class CacheShape(NamedTuple):
    """What the kernels keep of a token in a layer: so many vectors."""

    num_heads: int
    num_kinds: int  # keys and values, or latents, which are both
    dim: int


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
    has_qk_norm: bool  # queries and keys are normalised, each head of them
    is_parallel: bool  # attention and MLP read the same residual, and are added together
    has_mlp_norm: bool  # False: the MLP reads what attention reads if parallel, or the residual
    is_head_tied: bool  # the output head is the embedding
    windows: tuple[int | None, ...]  # per layer: how many positions a token sees, None = all
    attention_scale: float
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float
    ropes: tuple[RopeConfig | None, ...]  # per layer, None = nothing is turned
    rotary_dim: int  # number of a head's first dimensions that are turned
    tensor_names: TensorNames
    eos_token_ids: frozenset[int]
    shapes: tuple[LayerShape, ...] = ()  # per layer of the checkpoint, where they differ
    mixture: MixtureConfig | None = None
    latent: LatentConfig | None = None
    recurrent: RecurrentConfig | None = None
    mlp_layers: frozenset[int] | None = None
    """Layers of the checkpoint that have an MLP or experts, and nothing else; the others then have
    none. None: all layers have one."""
    weight_factors: Mapping[str, tuple[RowFactor, ...]] = field(default_factory=dict, hash=False)
    """What weights of all layers are multiplied by once they are read, by their names there."""
    is_qk_norm_whole: bool = False  # all query heads are normalised as one, and all key heads
    is_qk_norm_last: bool = False  # queries and keys are normalised behind rope
    has_attention_norm: bool = True  # False: attention reads the residual as it is
    has_output_norms: bool = False  # outputs of attention and MLP are normalised, then added
    logits_softcap: float | None = None  # c: logits become c tanh(logits / c)
    has_output_gates: bool = False  # attention's outputs count as much as sigmoids of own inputs
    has_value_norm: bool = False  # values are normalised, each head of them, without a weight
    has_layer_scalars: bool = False  # behind each layer the residual is multiplied by a number
    layer_input_size: int = 0  # what each layer has of one more embedding; 0: there is none
    has_sinks: bool = False  # each head's softmax has one more score, learned, without a value
    swiglu: SwiGluConfig | None = None  # replaces the activation of gated MLPs
    first_layer: int = 0  # index in the checkpoint of the first of these layers
    whole_windows: tuple[int | None, ...] = ()  # a part has those of all layers
    has_ends: bool = True  # embedding, final norm and output head
    family: str = ""  # its name, for people: nothing is decided by it
    quantisation: Quantisation | None = None  # form of a safetensors checkpoint
    embedding_bits: Mapping[str, Bits] = field(default_factory=dict, hash=False)
    """Forms of the blocks that hold the checkpoint's embeddings unchanged, by parameter name."""
    kept_bits: Mapping[str, Bits] = field(default_factory=dict, hash=False)
    """Forms of the checkpoint's matrices that stay as they are, by their names there."""
    has_mtp: bool = False
    """Whether a layer that guesses further tokens is loaded beside these: see `mtp`."""

    def part(self, layers: LayerRange) -> Self:
        """Returns the config of a process that runs these layers; the first has both ends too."""
        return replace(
            self,
            num_layers=layers.end - layers.begin,
            windows=self.windows[layers.begin : layers.end],
            whole_windows=self.windows,
            ropes=self.ropes[layers.begin : layers.end],
            first_layer=layers.begin,
            has_ends=layers.begin == 0,
        )

    @property
    def mtp(self) -> Self:
        """Returns the layer that guesses further tokens, as a model of one layer with these ends,
        whether it is loaded or not. It sees all positions, has experts where any layer has, and the
        sizes that layers have unless they differ."""
        mixture = self.mixture and replace(self.mixture, dense_layers=frozenset())
        return replace(
            self,
            num_layers=1,
            windows=(None,),
            ropes=self.ropes[-1:],
            shapes=(),
            mixture=mixture,
            recurrent=None,
            mlp_layers=None,
            has_mtp=False,
        )

    def shape_of(self, layer: int) -> LayerShape:
        """Returns the sizes of one of these layers."""
        if self.shapes:
            return self.shapes[self.first_layer + layer]
        heads = (self.num_kv_heads, self.head_dim, self.value_dim)
        return LayerShape(*heads, self.rotary_dim, self.ffn_size)

    @property
    def layer_shapes(self) -> Sequence[LayerShape]:
        return [self.shape_of(layer) for layer in range(self.num_layers)]

    def mixture_of(self, layer: int) -> MixtureConfig | None:
        """Returns the experts of one of these layers; None where it has one MLP or none."""
        if self.mixture is None or self.first_layer + layer in self.mixture.dense_layers:
            return None
        return self.mixture if self.has_mlp(layer) else None

    def has_mlp(self, layer: int) -> bool:
        """Whether one of these layers has an MLP or experts."""
        return self.mlp_layers is None or self.first_layer + layer in self.mlp_layers

    def attends(self, layer: int) -> bool:
        """Whether one of these layers has attention."""
        if self.mlp_layers is not None and self.first_layer + layer in self.mlp_layers:
            return False
        recurrent = self.recurrent_of(layer)
        return recurrent is None or recurrent.is_beside_attention

    def recurrent_of(self, layer: int) -> RecurrentConfig | None:
        """Returns what one of these layers has instead of attention, or beside it."""
        if self.recurrent is None or self.first_layer + layer not in self.recurrent.layers:
            return None
        return self.recurrent

    @property
    def recurrent_layers(self) -> Sequence[int]:
        return [layer for layer in range(self.num_layers) if self.recurrent_of(layer)]

    @property
    def state_floats(self) -> int:
        """Size of what the recurrent layers remember of a row."""
        of_layer = 0 if self.recurrent is None else self.recurrent.layer_floats
        return len(self.recurrent_layers) * of_layer

    @property
    def log_floats(self) -> int:
        """Size of what the recurrent layers note of a guess."""
        return len(self.recurrent_layers) * (self.recurrent.log_floats if self.recurrent else 0)

    @property
    def max_ffn_size(self) -> int:
        """Returns the size of the widest MLP that all tokens pass."""
        shared = 0 if self.mixture is None else self.mixture.shared_ffn_size
        return max(shared, *(shape.ffn_size for shape in self.layer_shapes))

    @property
    def num_groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_qkv_heads(self) -> int:
        """Heads of queries, their gates, keys and values."""
        return self.num_heads * (1 + self.has_output_gates) + 2 * self.num_kv_heads

    def qkv_size(self, shape: LayerShape) -> int:
        """Size of a token's queries, their gates, keys and values."""
        asking = self.num_heads * (1 + self.has_output_gates)
        return (asking + 2 * shape.num_kv_heads) * shape.head_dim

    def cache_shape(self, shape: LayerShape) -> CacheShape:
        if self.latent is None:
            return CacheShape(shape.num_kv_heads, KEYS_AND_VALUES, shape.head_dim)
        return CacheShape(1, 1, shape.rotary_dim + self.latent.kv_rank)

    @property
    def layer_inputs_size(self) -> int:
        """Size of what all layers read of a token besides the residual."""
        return self.num_layers * self.layer_input_size

    @property
    def value_dim(self) -> int:
        """Dimensions of each head's value."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    def context(self, max_seq_len: int | None) -> int:
        """Tokens a user row holds when MAX_SEQ_LEN is `max_seq_len`, and its memory its own."""
        return max_seq_len or min(self.max_positions, DEFAULT_MAX_SEQ_LEN)

    @property
    def own_context(self) -> int:
        """Returns the tokens that the model was made for. Longrope has other frequencies beyond its
        original context, for short texts too: only who asks for more gets them."""
        originals = [
            rope.original_max_positions
            for rope in self.ropes
            if rope is not None and rope.kind == "longrope"
        ]
        return min([self.max_positions, *originals])


SPARE_SLOTS = 1  # slots per row of torch's cache, for tokens that have no part in a step


def num_pages(num_tokens: int) -> int:
    """Pages that so many positions need."""
    return -(-num_tokens // PAGE_TOKENS)


def cache_capacity(max_seq_len: int) -> int:
    """Tokens that there is room for in a row of `max_seq_len`: whole pages."""
    return num_pages(max_seq_len) * PAGE_TOKENS
