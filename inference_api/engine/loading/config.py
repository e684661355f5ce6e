"""`ModelConfig`: a decoder's shape, read from a Hugging Face config.json.

All differences between the supported families end here. The rest of the engine asks only for
properties ("is the MLP gated?"), never for a family. Loads no torch.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from inference_api.errors import StartupError

DEFAULT_MAX_SEQ_LEN = 2048
CACHE_ALIGNMENT_TOKENS = 16  # see kv_cache: rows then begin on cache-line borders
KEYS_AND_VALUES = 2

# Beyond every published model, and small enough to plan with: there are objects for every layer.
MAX_LAYERS = 1024
MAX_COUNT = 2**30
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e12  # as float32 has them

NormKind = Literal["rms", "layer"]
RopeKind = Literal["default", "linear", "llama3"]
ROPE_KINDS: dict[str, RopeKind] = {"default": "default", "linear": "linear", "llama3": "llama3"}
TensorNames = Literal["llama", "falcon"]
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
ACTIVATION_ALIASES = {"swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


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


def read_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Understand the contents of a config.json.

    Both spellings of rope are read: `rope_parameters` (transformers 5) and `rope_theta` with
    `rope_scaling` (before). Raises StartupError naming every value that cannot be served.
    """
    family = raw.get("model_type")
    reader = _READERS.get(family) if isinstance(family, str) else None
    if reader is None:
        raise StartupError(
            [
                f"model_type={reprlib.repr(family)} in config.json is not supported; choose a "
                f"model of one of these: {', '.join(sorted(_READERS))}."
            ]
        )
    fields = _Fields(raw)
    if raw.get("quantization_config"):
        fields.faults.append(
            "config.json has a quantization_config and quantised checkpoints are not supported; "
            "choose the original float32, float16 or bfloat16 checkpoint."
        )
    config = reader(fields)
    if fields.faults:
        raise StartupError(fields.faults)
    _check_shape(config)
    return config


class _Fields:
    """Typed access to a config.json; what is wrong with it gathers in `faults`."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.faults: list[str] = []

    def count(self, name: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """An integer from 1 to `most`. Without a default the key must be there."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is not an integer from 1 to {most}; get "
            "the model again."
        )
        return 1

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name)
        value = default if value is None else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and MIN_NUMBER <= value <= MAX_NUMBER:
            return float(value)
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is not a number from {MIN_NUMBER:g} to "
            f"{MAX_NUMBER:g}; get the model again."
        )
        return 1.0

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is neither true nor false; get the model "
            "again."
        )
        return default

    def refuse(self, name: str, value: object, supported: str) -> None:
        self.faults.append(
            f"{name}={reprlib.repr(value)} in config.json is not supported; choose a model with "
            f"{supported}."
        )

    def activation(self, name: str, default: str) -> str:
        given = str(self.raw.get(name) or default)
        activation = ACTIVATION_ALIASES.get(given, given)
        if activation not in ACTIVATIONS:
            self.refuse(name, given, " or ".join((*ACTIVATIONS, *ACTIVATION_ALIASES)))
        return activation

    def rope(self, max_positions: int) -> RopeConfig:
        scaling = _Fields({**self._mapping("rope_scaling"), **self._mapping("rope_parameters")})
        given_kind = scaling.raw.get("rope_type") or scaling.raw.get("type") or "default"
        kind = ROPE_KINDS.get(str(given_kind))
        if kind is None:
            self.refuse("rope_type", given_kind, f"{', '.join(ROPE_KINDS)} rope")
        partial = scaling.raw.get("partial_rotary_factor", self.raw.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            self.refuse("partial_rotary_factor", partial, "rope over the whole head")
        rope = RopeConfig(
            kind or "default",
            theta=scaling.number("rope_theta", self.number("rope_theta", 10_000.0)),
            factor=scaling.number("factor", 1.0),
            low_freq_factor=scaling.number("low_freq_factor", 1.0),
            high_freq_factor=scaling.number("high_freq_factor", 4.0),
            original_max_positions=scaling.count("original_max_position_embeddings", max_positions),
        )
        if rope.kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
            self.refuse("low_freq_factor", rope.low_freq_factor, "one below its high_freq_factor")
        self.faults += scaling.faults
        return rope

    def _mapping(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name) or {}
        if isinstance(value, Mapping):
            return value
        self.refuse(name, value, "an object or nothing there")
        return {}

    def eos_token_ids(self, vocab_size: int) -> frozenset[int]:
        return frozenset(i for i in token_ids(self.raw.get("eos_token_id")) if i < vocab_size)


def token_ids(value: object) -> frozenset[int]:
    """The ids in an `eos_token_id`, which may be absent, one id or a list of them."""
    values = value if isinstance(value, list) else [value]
    return frozenset(
        item
        for item in values
        if isinstance(item, int) and not isinstance(item, bool) and item >= 0
    )


_ReadWindows = Callable[[_Fields, int], tuple[int | None, ...]]


def _no_windows(fields: _Fields, num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def _same_window(fields: _Fields, num_layers: int) -> tuple[int | None, ...]:
    """Mistral: one window for all layers; `null` turns it off."""
    if fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    return (fields.count("sliding_window"),) * num_layers


def _windows_by_layer(fields: _Fields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen: behind a switch, for the layers that `layer_types` or `max_window_layers` name."""
    if not fields.flag("use_sliding_window") or fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    window = fields.count("sliding_window")
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        first = fields.count("max_window_layers", 28)
        kinds = ["sliding_attention" if i >= first else "" for i in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.refuse("layer_types", kinds, f"one layer type for each of its {num_layers} layers")
        return (None,) * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _read_llama_like(
    fields: _Fields,
    has_qkv_bias: bool | None = None,
    has_qk_norm: bool = False,
    windows: _ReadWindows = _no_windows,
) -> ModelConfig:
    """Llama and the families that differ from it in biases, query norms, windows and multipliers.

    `has_qkv_bias` None means that the config's `attention_bias` decides.
    """
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    max_positions = fields.count("max_position_embeddings", DEFAULT_MAX_SEQ_LEN)
    vocab_size = fields.count("vocab_size")
    head_dim = fields.count("head_dim", max(1, hidden_size // num_heads))
    attention_bias = fields.flag("attention_bias")
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        ffn_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_positions=max_positions,
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.activation("hidden_act", "silu"),
        is_mlp_gated=True,
        has_qkv_bias=attention_bias if has_qkv_bias is None else has_qkv_bias,
        has_out_bias=attention_bias,
        has_mlp_bias=fields.flag("mlp_bias"),
        has_qk_norm=has_qk_norm,
        is_parallel=False,
        has_mlp_norm=True,
        is_head_tied=fields.flag("tie_word_embeddings"),
        windows=windows(fields, num_layers),
        attention_scale=fields.number("attention_multiplier", head_dim**-0.5),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
        rope=fields.rope(max_positions),
        tensor_names="llama",
        eos_token_ids=fields.eos_token_ids(vocab_size),
    )


def _read_falcon(fields: _Fields) -> ModelConfig:
    """Falcon: 7B (one key-value head), 40B and 180B (grouped), and the old sequential layers."""
    if fields.flag("alibi"):
        fields.refuse("alibi", True, "rotary positions (alibi=false)")
    is_new = fields.flag("new_decoder_architecture")
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    max_positions = fields.count("max_position_embeddings", DEFAULT_MAX_SEQ_LEN)
    vocab_size = fields.count("vocab_size")
    num_kv_heads = fields.count("num_kv_heads", num_heads)
    if not is_new:
        num_kv_heads = 1 if fields.flag("multi_query", True) else num_heads
    head_dim = max(1, hidden_size // num_heads)
    is_parallel = is_new or fields.flag("parallel_attn", True)
    has_bias = fields.flag("bias")
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        ffn_size=fields.count("ffn_hidden_size", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.activation("activation", "gelu"),
        is_mlp_gated=False,
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
        has_mlp_bias=has_bias,
        has_qk_norm=False,
        is_parallel=is_parallel,
        has_mlp_norm=not is_parallel
        or (is_new and fields.count("num_ln_in_parallel_attn", 2) == 2),
        is_head_tied=fields.flag("tie_word_embeddings", True),
        windows=(None,) * num_layers,
        attention_scale=head_dim**-0.5,
        embedding_multiplier=1.0,
        residual_multiplier=1.0,
        logits_divisor=1.0,
        rope=fields.rope(max_positions),
        tensor_names="falcon",
        eos_token_ids=fields.eos_token_ids(vocab_size),
    )


_READERS: dict[str, Callable[[_Fields], ModelConfig]] = {
    "falcon": _read_falcon,
    "granite": _read_llama_like,
    "llama": _read_llama_like,
    "mistral": partial(_read_llama_like, windows=_same_window),
    "qwen2": partial(_read_llama_like, has_qkv_bias=True, windows=_windows_by_layer),
    "qwen3": partial(_read_llama_like, has_qk_norm=True, windows=_windows_by_layer),
}


def _check_shape(config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise StartupError(
            [
                f"config.json has {config.num_heads} heads of {config.head_dim} over "
                f"{config.num_kv_heads} key-value heads; heads must divide evenly and be even "
                "in size: get the model again."
            ]
        )
