"""Reads the config.json of Llama and of families that differ little from it."""

from collections.abc import Mapping

from inference_api.loading.config import DEFAULT_MAX_SEQ_LEN, ModelConfig, RopeKind, TensorNames
from inference_api.loading.families.fields import ConfigFields, token_ids
from inference_api.loading.families.mixtures import ReadMixture, no_mixture
from inference_api.loading.families.ropes import KINDS, read_rope, read_rotary_dim
from inference_api.loading.families.windows import ReadWindows, no_windows
from inference_api.settings.model import MIN_CONTEXT_TOKENS


def read_llama_like(
    fields: ConfigFields,
    has_qkv_bias: bool | None = None,
    has_qk_norm: bool = False,
    windows: ReadWindows = no_windows,
    tensor_names: TensorNames = "llama",
    mixture: ReadMixture = no_mixture,
    rope_kinds: Mapping[str, RopeKind] = KINDS,
    usual_rotary_share: float | None = None,
) -> ModelConfig:
    """Reads Llama, and families that differ from it in biases, query norms, windows, multipliers,
    experts or rope.

    `has_qkv_bias` None means that the config's `attention_bias` decides. For `usual_rotary_share`
    see `read_rotary_dim`.
    """
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_layers = fields.count("num_hidden_layers")
    max_positions = fields.count(
        "max_position_embeddings", DEFAULT_MAX_SEQ_LEN, least=MIN_CONTEXT_TOKENS
    )
    vocab_size = fields.count("vocab_size")
    head_dim = fields.count("head_dim", max(1, hidden_size // num_heads))
    eos_token_ids = token_ids(fields.raw.get("eos_token_id"))
    attention_bias = fields.flag("attention_bias")
    rotary_dim = read_rotary_dim(fields, head_dim, usual_rotary_share)
    rope = read_rope(fields, max_positions, rotary_dim, rope_kinds)
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
        ropes=(rope,) * num_layers,
        rotary_dim=rotary_dim,
        tensor_names=tensor_names,
        eos_token_ids=frozenset(each for each in eos_token_ids if each < vocab_size),
        mixture=mixture(fields, num_layers),
    )
