"""`ModelConfig`: a decoder's shape, which `families` reads from a config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from inference_api.kernels.packing import GROUP, Bits
from inference_api.loading.families.recurrence import RecurrentConfig

DEFAULT_MAX_SEQ_LEN = 2048
LATENT_NORM_EPS = 1e-6
PAGE_TOKENS = 32  # positions in a page of the KV cache, which the kernels process together
KEYS_AND_VALUES = 2

NormKind = Literal["rms", "layer"]
RopeKind = Literal["default", "linear", "llama3", "longrope", "proportional", "yarn"]
TensorNames = str  # a key of `SCHEMES`
Scoring = Literal["softmax", "sigmoid"]
QuantisedForm = Literal["float8", "int8", "packed", "awq", "gptq", "mxfp4", "nvfp4", "nvfp4_packed"]
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
    query_growth: float = 0.0  # growth of turned queries per e-fold of the original context
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    short_factors: tuple[float, ...] = ()  # one for each turned pair
    long_factors: tuple[float, ...] = ()
    magnitude: float = 1.0  # factor of turned dimensions
    num_turned: int | None = None  # how many of the first pairs turn; None: all


@dataclass(frozen=True, slots=True)
class SwiGluConfig:
    """Clamped gates: gate * sigmoid(alpha * gate) * (up + 1), with gate <= limit and
    -limit <= up <= limit."""

    limit: float
    alpha: float


class ExpertGroups(NamedTuple):
    """Groups of neighbouring experts, all of one size. A token chooses experts only from its best
    groups; a group's score is the sum of its `num_scored` best experts' scores."""

    num_groups: int
    groups_per_token: int
    num_scored: int


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """A mixture of experts: layers of many MLPs, of which a router chooses a few for each token.

    A token's scores are the softmax or sigmoid of the router's logits. It takes the experts with
    the largest scores, the lower index first among equals, and weights them by their scores (its
    shares).
    """

    num_experts: int
    experts_per_token: int
    ffn_size: int  # size of one expert
    is_renormalised: bool  # the shares of a token's experts are made to sum to one
    dense_layers: frozenset[int]  # layers of the checkpoint that have one MLP for all tokens
    has_biases: bool = False  # the router and the experts have biases
    scoring: Scoring = "softmax"
    has_selection_bias: bool = False  # scores have a bias to choose experts, but not as shares
    groups: ExpertGroups | None = None
    scale: float = 1.0  # factor of all shares
    shared_ffn_size: int = 0  # size of the shared MLP, which all tokens pass; 0: there is none
    latent_size: int = 0  # size of what experts read and make; 0: the size of the residual
    has_shared_gate: bool = False  # a sigmoid weighs the shared MLP
    has_own_norms: bool = False  # router, experts and shared MLP have norms; shares have factors
    least_sum: float = 1e-20  # added to the sum that shares are divided by: sigmoids may sum to 0


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Latent attention (DeepSeek-AI 2024, arXiv 2405.04434).

    Queries are projected from a normalised shorter vector, a latent; keys and values from another
    one. The turned part of a key is the same for all heads, and not projected from the latent.
    """

    query_rank: int | None  # size of the latent; None: queries are projected from the input
    kv_rank: int
    value_dim: int  # size of a head's value; at most head_dim


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a quantised checkpoint stores a matrix [outputs, inputs]: scale * (value - zero).

    A block of `block` = (outputs, inputs) shares a scale, and with `has_zeros` a zero; 0 stands for
    all outputs or inputs. The package `quantised` knows the tensors' names and shapes. Tensors that
    are not quantised keep their usual names.
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
        """Whether the kernels' groups of 4 bits can hold its values unchanged."""
        is_other = self.has_zeros or self.has_order or self.form == "mxfp4"
        return self.bits == 4 and not is_other and self.block[1] % GROUP == 0


class RowFactor(NamedTuple):
    """A factor of some rows of a matrix; without rows, of all."""

    rows: int
    factor: float


class LayerShape(NamedTuple):
    """Sizes that may differ between the layers of a model."""

    num_kv_heads: int
    head_dim: int
    value_dim: int  # size of a head's value; at most head_dim
    rotary_dim: int  # number of a head's first dimensions that are turned
    ffn_size: int
    kv_source: int | None = None  # layer whose keys and values it uses; None: its own
    has_values: bool = True  # False: the key projection's output serves as values too
    gate_cutoff: float | None = None  # standard deviations above their mean that gates must exceed


class CacheShape(NamedTuple):
    """The number and size of the vectors that are cached for a token in a layer."""

    num_heads: int
    num_kinds: int  # 2: keys and values; 1: latents, which serve as both
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
    has_mlp_norm: bool  # False: the MLP reads attention's input if parallel, else the residual
    is_head_tied: bool  # the output head is the embedding
    windows: tuple[int | None, ...]  # per layer: how many positions a token attends to, None = all
    attention_scale: float
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float
    ropes: tuple[RopeConfig | None, ...]  # per layer, None = no rope
    rotary_dim: int  # number of a head's first dimensions that are turned
    tensor_names: TensorNames
    eos_token_ids: frozenset[int]
    shapes: tuple[LayerShape, ...] = ()  # per layer of the checkpoint, if they differ
    mixture: MixtureConfig | None = None
    latent: LatentConfig | None = None
    recurrent: RecurrentConfig | None = None
    mlp_layers: frozenset[int] | None = None
    """Layers of the checkpoint that consist of an MLP or experts alone; the other layers then have
    neither. None: every layer has an MLP or experts."""
    weight_factors: Mapping[str, tuple[RowFactor, ...]] = field(default_factory=dict, hash=False)
    """Factors that weights of all layers are multiplied by when they are read, by their names in
    the checkpoint."""
    is_qk_norm_whole: bool = False  # all query heads are normalised as one, and all key heads
    is_qk_norm_last: bool = False  # queries and keys are normalised after rope
    has_attention_norm: bool = True  # False: attention reads the residual as it is
    has_output_norms: bool = False  # outputs of attention and MLP are normalised, then added
    logits_softcap: float | None = None  # c: logits become c tanh(logits / c)
    has_output_gates: bool = False  # attention's outputs are multiplied by sigmoids of projections
    has_value_norm: bool = False  # each head of values is normalised, without a weight
    has_layer_scalars: bool = False  # after each layer the residual is multiplied by a number
    layer_input_size: int = 0  # per layer, size of one more embedding that it reads; 0: none
    layer_input_tokens: int = 0  # tokens with a row in that; others use the first token's row
    num_streams: int = 1  # above 1: streams with alternating updates, see `src/streams.h`
    laurel_rank: int = 0  # rank of a map beside attention; 0: there is none
    has_sinks: bool = False  # each head's softmax has one more score, learned, without a value
    swiglu: SwiGluConfig | None = None  # replaces the activation of gated MLPs
    first_layer: int = 0  # index in the checkpoint of the first of these layers
    whole_windows: tuple[int | None, ...] = ()  # windows of all layers, if this is a part
    has_ends: bool = True  # embedding, final norm and output head
    family: str = ""  # name for people; nothing is decided by it
    quantisation: Quantisation | None = None  # form of a safetensors checkpoint
    embedding_bits: Mapping[str, Bits] = field(default_factory=dict, hash=False)
    """Forms that hold the checkpoint's embeddings unchanged, by parameter name."""
    kept_bits: Mapping[str, Bits] = field(default_factory=dict, hash=False)
    """Forms of the checkpoint's matrices that are used unchanged, by their names there."""
    experts_elsewhere: frozenset[int] = frozenset()  # layers whose experts are not here
    has_mtp: bool = False  # whether the layer that guesses further tokens is loaded, too: see `mtp`
    backbone_size: int = 0
    """Hidden size of the model that this one drafts for, whose keys and values it uses; else 0."""
    window_margin: int = 0  # how many positions before its windows a model keeps for a drafter

    def part(self, layers: LayerRange) -> Self:
        """Returns the config of a process that runs these layers. The one with the first layer also
        has the embedding, the final norm and the output head."""
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
        """Returns the layer that guesses further tokens, as a model of one layer, whether or not it
        is loaded. It attends to all positions, has experts if any layer has, and the common sizes
        of layers."""
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
        """Returns the sizes of a layer."""
        if self.shapes:
            return self.shapes[self.first_layer + layer]
        heads = (self.num_kv_heads, self.head_dim, self.value_dim)
        return LayerShape(*heads, self.rotary_dim, self.ffn_size)

    @property
    def layer_shapes(self) -> Sequence[LayerShape]:
        return [self.shape_of(layer) for layer in range(self.num_layers)]

    def mixture_of(self, layer: int) -> MixtureConfig | None:
        """Returns the experts of a layer; None if it has one MLP or none."""
        if self.mixture is None or self.first_layer + layer in self.mixture.dense_layers:
            return None
        return self.mixture if self.has_mlp(layer) else None

    def has_mlp(self, layer: int) -> bool:
        """Returns whether a layer has an MLP or experts."""
        number = self.first_layer + layer
        is_in_files = self.mlp_layers is None or number in self.mlp_layers
        return is_in_files and number not in self.experts_elsewhere

    def attends(self, layer: int) -> bool:
        """Returns whether a layer has attention."""
        if self.mlp_layers is not None and self.first_layer + layer in self.mlp_layers:
            return False
        recurrent = self.recurrent_of(layer)
        return recurrent is None or recurrent.is_beside_attention

    def recurrent_of(self, layer: int) -> RecurrentConfig | None:
        """Returns the recurrent mixer of a layer; None if it has none."""
        if self.recurrent is None or self.first_layer + layer not in self.recurrent.layers:
            return None
        return self.recurrent

    @property
    def recurrent_layers(self) -> Sequence[int]:
        return [layer for layer in range(self.num_layers) if self.recurrent_of(layer)]

    @property
    def state_floats(self) -> int:
        """Floats in the recurrent state of a row."""
        of_layer = 0 if self.recurrent is None else self.recurrent.layer_floats
        return len(self.recurrent_layers) * of_layer

    @property
    def log_floats(self) -> int:
        """Floats that recurrent layers log about a guess."""
        return len(self.recurrent_layers) * (self.recurrent.log_floats if self.recurrent else 0)

    @property
    def num_groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    def qkv_size(self, shape: LayerShape) -> int:
        """Size of a token's queries, their gates, keys and values."""
        query_heads = self.num_heads * (1 + self.has_output_gates)
        return (query_heads + 2 * shape.num_kv_heads) * shape.head_dim

    def cache_shape(self, shape: LayerShape) -> CacheShape:
        if self.latent is None:
            return CacheShape(shape.num_kv_heads, KEYS_AND_VALUES, shape.head_dim)
        return CacheShape(1, 1, shape.rotary_dim + self.latent.kv_rank)

    @property
    def layer_inputs_size(self) -> int:
        """Floats of a token that all layers together read besides the residual."""
        return self.num_layers * self.layer_input_size

    @property
    def value_dim(self) -> int:
        """Dimensions of each head's value."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    def context(self, max_seq_len: int | None) -> int:
        """Returns the tokens of a user row with memory of its own, if MAX_SEQ_LEN is
        `max_seq_len`."""
        return max_seq_len or min(self.max_positions, DEFAULT_MAX_SEQ_LEN)

    @property
    def own_context(self) -> int:
        """Returns the context that the model was made for. With longrope it is the original one,
        because a longer one changes the frequencies for short texts, too; it must be requested."""
        originals = [
            rope.original_max_positions
            for rope in self.ropes
            if rope is not None and rope.kind == "longrope"
        ]
        return min([self.max_positions, *originals])


SPARE_SLOTS = 1  # slots per row of torch's cache, for padding tokens of a step


def num_pages(num_tokens: int) -> int:
    """Returns the pages that `num_tokens` positions need."""
    return -(-num_tokens // PAGE_TOKENS)


def cache_capacity(max_seq_len: int) -> int:
    """Returns the tokens that fit into a row's whole pages."""
    return num_pages(max_seq_len) * PAGE_TOKENS
