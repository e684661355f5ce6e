"""Reads the config.json of Nemotron-H and 3: a layer is attention, Mamba-2, an MLP or experts."""

from collections.abc import Sequence
from dataclasses import replace

from inference_api.loading.config import MixtureConfig, ModelConfig
from inference_api.loading.families.fields import MAX_LAYERS, ConfigFields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mamba import MAMBA, read_mamba
from inference_api.loading.families.mixtures import no_mixture, read_deepseek_mixture
from inference_api.loading.families.qwen3_next import LINEAR
from inference_api.loading.families.windows import GLOBAL

EXPERTS, MLP = "moe", "mlp"  # names of such layers in `layers_block_type`
_LETTERS = {"M": LINEAR, "*": GLOBAL, "E": EXPERTS, "-": MLP}
_OLDER = {MAMBA: LINEAR, "attention": GLOBAL}
_NAMES = {  # the names of some newer files, which we use, by those of most files
    "conv_kernel": "mamba_d_conv",
    "mamba_head_dim": "mamba_d_head",
    "mamba_num_heads": "mamba_n_heads",
    "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state",
    "use_conv_bias": "mamba_conv_bias",
}
_ONLY = {"mamba_hidden_act": "silu", "sliding_window": None}


def read_nemotron_h(fields: ConfigFields) -> ModelConfig:
    """Has no rope, no attention biases and no gates."""
    for name, value in _ONLY.items():
        if fields.raw.get(name) not in (None, value):
            fields.refuse(name, fields.raw[name], f"{value or 'no'} {name}")
    kinds = _kinds(fields)
    own = {
        "attention_bias": False,
        "hidden_act": fields.raw["mlp_hidden_act"],
        "mamba_proj_bias": fields.raw.get("use_bias"),
        "num_hidden_layers": len(kinds),
        "rms_norm_eps": fields.raw["layer_norm_epsilon"],
    }
    own |= {ours: fields.raw.get(ours, fields.raw[name]) for name, ours in _NAMES.items()}
    fields = fields.under({**fields.raw, **own})

    def of_kind(*wanted: str) -> frozenset[int]:
        return frozenset(layer for layer, kind in enumerate(kinds) if kind in wanted)

    def read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
        if fields.flag("mlp_bias"):
            fields.refuse("mlp_bias", True, "mlp_bias=false beside experts")
        mixture = read_deepseek_mixture(fields, num_layers)
        return replace(
            mixture,
            dense_layers=of_kind(MLP),
            shared_ffn_size=fields.count("moe_shared_expert_intermediate_size"),
            latent_size=fields.count("moe_latent_size", 0, fields.count("hidden_size"), least=0),
        )

    config = read_llama_like(
        fields,
        tensor_names="nemotron_h",
        mixture=read_mixture if of_kind(EXPERTS) else no_mixture,
    )
    inner = fields.count("mamba_n_heads") * fields.count("mamba_d_head")
    return replace(
        config,
        is_mlp_gated=False,
        ropes=(None,) * len(kinds),
        recurrent=read_mamba(fields, of_kind(LINEAR), inner),
        mlp_layers=of_kind(EXPERTS, MLP),
    )


def _kinds(fields: ConfigFields) -> Sequence[str]:
    """Returns the kind of each layer, from a list of words or a string of letters."""
    names = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    name = next((each for each in names if fields.raw.get(each) is not None), names[0])
    given = fields.raw.get(name)
    known = _LETTERS if isinstance(given, str) else {kind: kind for kind in _LETTERS.values()}
    listed = given if isinstance(given, list | str) else ()
    kinds = [known.get(_OLDER.get(str(kind), str(kind)), "") for kind in listed[: MAX_LAYERS + 1]]
    if not {GLOBAL, LINEAR} <= {*kinds} <= {*_LETTERS.values()} or len(kinds) > MAX_LAYERS:
        supported = f"up to {MAX_LAYERS} of {' '.join(known)}, and some of the first two"
        fields.refuse(name, given, supported)
        return [GLOBAL]
    return kinds
