"""Reads the fields of a config.json about a mixture of experts."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from inference_api.loading.config import ExpertGroups, MixtureConfig, Scoring
from inference_api.loading.families.fields import ConfigFields

MAX_EXPERTS = 1024  # in one layer
# In all layers together, because every expert takes objects. Published models have up to 20,000.
MAX_ALL_EXPERTS = 65_536

TOP_TWO = "group_limited_top_two"  # our name for Mistral 4's method; its files give none
# Keys are values of `topk_method`; values name the scores by which experts are chosen.
_SCORINGS: Mapping[str, Scoring] = {
    "greedy": "softmax",
    "group_limited_greedy": "softmax",
    "noaux_tc": "sigmoid",
}

ReadMixture = Callable[[ConfigFields, int], MixtureConfig | None]


def no_mixture(fields: ConfigFields, num_layers: int) -> None:
    """Returns None: every layer has one MLP."""


def read_experts(
    fields: ConfigFields,
    num_layers: int,
    count: str = "num_experts",
    per_token: str = "num_experts_per_tok",
    size: str = "moe_intermediate_size",
) -> MixtureConfig:
    """Reads experts in every layer, with shares that sum to one. Families differ in the names of
    the fields."""
    num_experts = fields.count(count, most=min(MAX_EXPERTS, MAX_ALL_EXPERTS // num_layers))
    return MixtureConfig(
        num_experts,
        fields.count(per_token, most=num_experts),
        fields.count(size),
        is_renormalised=True,
        dense_layers=frozenset(),
    )


def read_mixtral(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Reads experts in every layer, each of the size that the MLP has in other families."""
    return read_experts(fields, num_layers, "num_local_experts", size="intermediate_size")


def read_qwen3_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Reads experts in every `decoder_sparse_step`th layer, except for `mlp_only_layers`."""
    name = "num_experts" if fields.raw.get("num_experts") is not None else "num_local_experts"
    step = fields.count("decoder_sparse_step", 1)
    named = fields.raw.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        fields.refuse("mlp_only_layers", named, "a list of layers")
        named = []
    return replace(
        read_experts(fields, num_layers, name),
        is_renormalised=fields.flag("norm_topk_prob"),
        dense_layers=frozenset(n for n in range(num_layers) if (n + 1) % step or n in named),
    )


def read_deepseek_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Reads DeepSeek and GLM-4.5: experts from some layer on, and experts that all tokens share."""
    experts = read_experts(fields, num_layers, "n_routed_experts")
    num_shared = fields.count("n_shared_experts", 0, most=MAX_EXPERTS, least=0)
    method = str(fields.raw.get("topk_method"))
    scoring = "softmax" if method == TOP_TWO else _SCORINGS.get(method)
    if scoring is None:
        fields.refuse("topk_method", method, " or ".join(_SCORINGS))
    elif fields.raw.get("scoring_func", scoring) != scoring:
        supported = f"scoring_func={scoring} beside topk_method={method}"
        fields.refuse("scoring_func", fields.raw["scoring_func"], supported)
    return replace(
        experts,
        is_renormalised=fields.flag("norm_topk_prob"),
        dense_layers=_dense_layers(fields, num_layers),
        scoring=scoring or "softmax",
        has_selection_bias=method == "noaux_tc",
        groups=None if method == "greedy" else _groups(fields, experts),
        scale=fields.number("routed_scaling_factor", 1.0),
        shared_ffn_size=num_shared * experts.ffn_size,
    )


def read_ernie_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    """Reads experts in some layers, scored by softmax over all. Biases only affect the choice."""
    experts = read_experts(fields, num_layers, "moe_num_experts", "moe_k")
    num_shared = fields.count("moe_num_shared_experts", 2, least=0, most=MAX_EXPERTS)
    first = fields.count("moe_layer_start_index", 1, least=0)
    interval = fields.count("moe_layer_interval", 1)
    last = fields.count("moe_layer_end_index", -1, least=-1)
    last = num_layers - 1 if last == -1 else last
    sparse = (i for i in range(num_layers) if first <= i <= last and (i + 1) % interval == 0)
    return replace(
        experts,
        dense_layers=frozenset(range(num_layers)) - frozenset(sparse),
        has_selection_bias=True,
        shared_ffn_size=num_shared * experts.ffn_size,
    )


def _dense_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    kinds = fields.raw.get("mlp_layer_types")
    if isinstance(kinds, list) and len(kinds) == num_layers:
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")
    if kinds is not None:
        fields.refuse("mlp_layer_types", kinds, f"a type of MLP for each of {num_layers} layers")
    first = fields.count("first_k_dense_replace", 0, least=0)
    step = fields.count("moe_layer_freq", 1)
    return frozenset(layer for layer in range(num_layers) if layer < first or layer % step)


def _groups(fields: ConfigFields, experts: MixtureConfig) -> ExpertGroups | None:
    """Returns the groups of experts; None if there is only one."""
    num_experts, experts_per_token = experts.num_experts, experts.experts_per_token
    num_groups = fields.count("n_group", 1, most=num_experts)
    groups_per_token = fields.count("topk_group", 1, most=num_groups)
    if num_groups == 1:
        return None
    num_scored = 2 if fields.raw["topk_method"] in ("noaux_tc", TOP_TWO) else 1
    group_size = num_experts // num_groups
    if num_experts % num_groups or group_size < num_scored:
        fields.refuse("n_group", num_groups, f"groups of {num_scored} or more experts, all alike")
    elif groups_per_token * group_size < experts_per_token:
        supported = f"as many experts in them as num_experts_per_tok={experts_per_token}"
        fields.refuse("topk_group", groups_per_token, supported)
    return ExpertGroups(num_groups, groups_per_token, num_scored)
