"""Names of tensors in checkpoints, by naming scheme."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inference_api.loading.config import TensorNames


class MtpNames(NamedTuple):
    """Names of the layer that guesses further tokens, and of the tensors around it. `{}` stands for
    the model's number of layers."""

    layer: str
    projection: str
    embedding_norm: str
    hidden_norm: str
    final_norm: str

    def behind(self, num_layers: int) -> "MtpNames":
        return MtpNames(*(name.format(num_layers) for name in self))


_NEXTN = ("", ".eh_proj", ".enorm", ".hnorm", ".shared_head.norm")
_MTP = MtpNames(*(f"model.layers.{{}}{end}" for end in _NEXTN))
_MLP = ("gate_proj", "up_proj", "down_proj")
_SEPARATE_CONV = ("q_conv1d", "k_conv1d", "v_conv1d")


@dataclass(frozen=True, slots=True)
class Names:
    """A naming scheme, by default Llama's: a common prefix, the modules' names below it, and the
    tensors' layouts where these differ between schemes: see `SourceTensor`."""

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    layer: str = "model.layers"
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    attention_output_norm: str = ""
    mlp_output_norm: str = ""
    is_qkv_grouped: bool = False
    is_interleaved: bool = False
    norm_offset: float = 0.0
    router: str = "mlp.gate"  # from here to `expert_down`: only in a mixture
    selection_bias: str = "mlp.gate.e_score_correction_bias"
    router_scale: str = ""
    expert_scales: str = ""
    shared: str = "mlp.shared_experts"  # prefix of the shared experts' modules
    experts: str = "mlp.experts"  # prefix of an expert's number, which the next two names follow
    expert_up: tuple[str, ...] = _MLP[:2]
    expert_down: str = _MLP[2]
    sinks: str = ""
    layer_scalar: str = ""
    qk_norm: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    mixer: str = ""  # prefix of a recurrent mixer's modules, from here to `head_norm`
    mixer_in: tuple[str, ...] = ("in_proj",)
    conv: tuple[str, ...] = ("conv1d",)
    mixer_out: str = "out_proj"
    steps: tuple[str, ...] = ()  # only in a delta rule; the next two in Kimi's
    gates: str = ""
    forgets: str = ""
    head_norm: str = "norm"
    shared_up: tuple[str, ...] = ()  # if they differ from an expert's
    shared_down: str = ""
    shared_gate: str = ""
    mtp: MtpNames | None = _MTP
    is_mlp_next: bool = False  # a layer with attention has its MLP in the checkpoint's next layer
    published_parts: Mapping[str, str] = field(default_factory=dict)
    """Parts of names, as transformers saves them: the parts that published files have instead."""


_MIXTRAL = Names(
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts",
    expert_up=("w1", "w3"),
    expert_down="w2",
)
_QWEN3_5 = Names(
    norm_offset=1.0,
    shared="mlp.shared_expert",
    shared_gate="mlp.shared_expert_gate",
    mixer="linear_attn",
    mixer_in=("in_proj_qkv", "in_proj_z"),
    steps=("in_proj_b", "in_proj_a"),
    mtp=MtpNames(
        "mtp.layers.0", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"
    ),
)
_GRANITE_HYBRID = Names(mixer="mamba")
_QWEN3_NEXT = replace(_QWEN3_5, steps=("in_proj_ba",))
_GEMMA = Names(
    mlp_norm="pre_feedforward_layernorm",
    attention_output_norm="post_attention_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
SCHEMES: dict[TensorNames, Names] = {
    "ernie4_5": Names(
        is_interleaved=True, selection_bias="mlp.moe_statics.e_score_correction_bias"
    ),
    "falcon": Names(
        embedding="transformer.word_embeddings",
        final_norm="transformer.ln_f",
        layer="transformer.h",
        qkv=("self_attention.query_key_value",),
        out="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        is_qkv_grouped=True,
        mtp=None,
    ),
    "falcon_h1": replace(
        _GRANITE_HYBRID,
        final_norm="model.final_layernorm",
        mlp_norm="pre_ff_layernorm",
        up=("feed_forward.gate_proj", "feed_forward.up_proj"),
        down="feed_forward.down_proj",
    ),
    "gemma3": replace(_GEMMA, norm_offset=1.0),
    "gemma4": replace(
        _GEMMA,
        layer_scalar="layer_scalar",
        router="router.proj",
        router_scale="router.scale",
        expert_scales="router.per_expert_scale",
        experts="experts",
        shared="mlp",
    ),
    "glm4": Names(
        up=("mlp.gate_up_proj",),
        attention_output_norm="post_self_attn_layernorm",
        mlp_output_norm="post_mlp_layernorm",
        is_interleaved=True,
    ),
    "gpt_oss": Names(router="mlp.router", sinks="self_attn.sinks"),
    "granite_hybrid": replace(
        _GRANITE_HYBRID,
        up=("shared_mlp.input_linear",),
        down="shared_mlp.output_linear",
        router="block_sparse_moe.router.layer",
        experts="block_sparse_moe.experts",
        shared="shared_mlp",
        shared_up=("input_linear",),
        shared_down="output_linear",
    ),
    "granite_hybrid_split": _GRANITE_HYBRID,  # GGUF's layout
    "hunyuan": Names(
        qk_norm=("self_attn.query_layernorm", "self_attn.key_layernorm"),
        router="mlp.gate.wg",
        shared="mlp.shared_mlp",
    ),
    "kimi_linear": replace(
        _MIXTRAL,
        selection_bias="block_sparse_moe.gate.e_score_correction_bias",
        shared="block_sparse_moe.shared_experts",
        shared_up=_MLP[:2],
        shared_down=_MLP[2],
        published_parts={f".block_sparse_moe.{each}.": f".mlp.{each}." for each in _MLP},
        mixer="self_attn",
        mixer_in=("q_proj", "k_proj", "v_proj"),
        conv=_SEPARATE_CONV,
        mixer_out="o_proj",
        steps=("b_proj", "g_a_proj", "f_a_proj"),
        gates="g_b_proj",
        forgets="f_b_proj",
        head_norm="o_norm",
        mtp=None,
    ),
    "lfm2": Names(
        final_norm="model.embedding_norm",
        attention_norm="operator_norm",
        mlp_norm="ffn_norm",
        out="self_attn.out_proj",
        qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
        mixer="conv",
        conv=("conv",),
        up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        router="feed_forward.gate",
        selection_bias="feed_forward.expert_bias",
        experts="feed_forward.experts",
        expert_up=("w1", "w3"),
        expert_down="w2",
    ),
    "llama": Names(),
    "mixtral": _MIXTRAL,
    "nemotron_h": Names(
        embedding="backbone.embeddings",
        final_norm="backbone.norm_f",
        layer="backbone.layers",
        attention_norm="norm",
        mlp_norm="norm",
        qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
        out="mixer.o_proj",
        up=("mixer.up_proj",),
        down="mixer.down_proj",
        router="mixer.gate",
        selection_bias="mixer.gate.e_score_correction_bias",
        shared="mixer.shared_experts",
        experts="mixer.experts",
        expert_up=("up_proj",),
        mixer="mixer",
        is_mlp_next=True,
        mtp=MtpNames(
            "mtp.layers.0",
            "mtp.layers.0.eh_proj",
            "mtp.layers.0.enorm",
            "mtp.layers.0.hnorm",
            "mtp.layers.1.final_layernorm",
        ),
    ),
    "olmo2": Names(
        attention_output_norm="post_attention_layernorm",
        mlp_output_norm="post_feedforward_layernorm",
    ),
    "olmo_hybrid": Names(
        attention_norm="attention_layer_norm",
        mlp_norm="feedforward_layer_norm",
        attention_output_norm="post_attention_layernorm",
        mlp_output_norm="post_feedforward_layernorm",
        mixer="linear_attn",
        mixer_in=("q_proj", "k_proj", "v_proj", "g_proj"),
        conv=_SEPARATE_CONV,
        mixer_out="o_proj",
        steps=("b_proj", "a_proj"),
        head_norm="o_norm",
        mtp=None,
    ),
    "qwen3_5": _QWEN3_5,
    "qwen3_next": replace(_QWEN3_NEXT, mixer_in=("in_proj_qkvz",)),
    "qwen3_next_split": _QWEN3_NEXT,  # GGUF's layout
    "phi3": Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
}
FALCON_PARALLEL_NORMS = ("ln_attn", "ln_mlp")  # for a parallel layer with two norms
