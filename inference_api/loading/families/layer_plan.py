"""The checkpoint tensors that make up the parameters of a layer.

Query, key and value projections are one parameter here, and so are the gate and up projections
of an MLP: one matrix product instead of three or two. A parameter's parts are stacked by rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from inference_api.loading.config import LatentConfig, MixtureConfig, ModelConfig, RowFactor
from inference_api.loading.families.recurrence import RecurrentConfig
from inference_api.loading.families.row_orders import delta_order, part_by_part, rotary_order
from inference_api.loading.families.tensor_names import FALCON_PARALLEL_NORMS, Names

LAYER_INPUTS = "layer_inputs"  # the embedding that layers read besides the residual
ROUTER = ".router"
ALTUP = ".altup"


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor of a checkpoint, and how its rows map to ours. Only safetensors need mapping."""

    name: str
    shape: tuple[int, ...]
    head_order: Sequence[int] = ()
    """For each of our rows, of a head or of the whole tensor, its index in the checkpoint; see
    `rotary_order` and `row_orders`."""
    offset: float = 0.0
    """Added to each value."""
    factors: tuple[RowFactor, ...] = ()
    """Factors of rows, applied one after another."""

    @property
    def row_factors(self) -> NDArray[np.float32]:
        sizes = [each.rows or self.shape[0] for each in self.factors]
        return np.repeat([np.float32(each.factor) for each in self.factors], sizes)


ParameterSources = dict[str, tuple[SourceTensor, ...]]  # parts by parameter name


def layer_plan(config: ModelConfig, names: Names, index: int) -> ParameterSources:
    recurrent = config.recurrent_of(index)
    if recurrent is not None and recurrent.has_norms_before:
        config = replace(config, has_attention_norm=True, has_mlp_norm=True, has_output_norms=False)
    plan, prefix = _layer_plan(config, names, index), f"{names.layer}.{config.first_layer + index}."
    factors = {f"{prefix}{name}.weight": each for name, each in config.weight_factors.items()}
    return {
        ours: tuple(replace(part, factors=factors.get(part.name, ())) for part in parts)
        for ours, parts in plan.items()
    }


def _layer_plan(config: ModelConfig, names: Names, index: int) -> ParameterSources:
    theirs, ours = f"{names.layer}.{config.first_layer + index}", f"layers.{index}"
    plan = _mixer_plan(config, names, index, ours, theirs)
    if config.has_layer_scalars:
        plan[f"{ours}.output_scale"] = (SourceTensor(f"{theirs}.{names.layer_scalar}", (1,)),)
    if config.has_mlp(index):
        plan |= _mlp_plan(config, names, index, ours, theirs)
    if config.num_streams > 1:
        plan |= _altup_plan(config, ours, theirs)
    if config.laurel_rank:
        plan |= _laurel_plan(config, names, ours, theirs)
    return plan


def _mixer_plan(
    config: ModelConfig, names: Names, index: int, ours: str, theirs: str
) -> ParameterSources:
    """Returns the sources of a layer's attention and recurrent mixer, as far as it has them."""
    shape = config.shape_of(index)
    hidden, head = config.hidden_size, shape.head_dim
    kv = shape.num_kv_heads * head
    queries, values = config.num_heads * head, config.num_heads * shape.value_dim
    asking = queries * (1 + config.has_output_gates)
    qkv_rows = (asking, kv, kv) if len(names.qkv) == 3 else (asking + 2 * kv,)
    num_kinds = 1 if shape.kv_source is not None else 2 + shape.has_values
    plan: ParameterSources = {}
    attends, recurrent = config.attends(index), config.recurrent_of(index)
    if config.has_attention_norm and (attends or recurrent is not None):
        its_norm = f"{theirs}.{_norm_names(config, names)[0]}"
        plan.update(norm_plan(config, names, f"{ours}.attention_norm", its_norm))
    if recurrent is not None:
        plan.update(_recurrent_plan(recurrent, names, ours, theirs, hidden))
    if attends and config.latent is None:
        parts = (names.qkv[:num_kinds], qkv_rows[:num_kinds])
        qkv = _linear(f"{ours}.qkv", theirs, *parts, hidden, config.has_qkv_bias)
        qkv = {n: tuple(_qkv_part(config, names, p) for p in parts) for n, parts in qkv.items()}
        plan.update(_with_values_apart(config, ours, qkv))
    elif attends and config.latent is not None:
        plan.update(_latent_plan(config, config.latent, ours, theirs))
    if config.has_qk_norm and attends:
        sizes = (queries, kv) if config.is_qk_norm_whole else (head, head)
        kinds = list(zip(("q_norm", "k_norm"), names.qk_norm, sizes, strict=True))
        for name, its_name, size in kinds[:num_kinds]:
            weight = f"{theirs}.{its_name}.weight"
            plan[f"{ours}.{name}"] = (SourceTensor(weight, (size,), offset=names.norm_offset),)
    if attends:
        plan.update(
            _linear(f"{ours}.out", theirs, (names.out,), (hidden,), values, config.has_out_bias)
        )
    if config.has_sinks:
        plan[f"{ours}.sinks"] = (SourceTensor(f"{theirs}.{names.sinks}", (config.num_heads,)),)
    if config.has_output_norms:
        its_norm = f"{theirs}.{names.attention_output_norm}"
        plan.update(norm_plan(config, names, f"{ours}.attention_output_norm", its_norm))
    return plan


def _norm_names(config: ModelConfig, names: Names) -> tuple[str, str]:
    """Returns the names of the norms before attention and before the MLP."""
    if config.is_parallel and config.has_mlp_norm:
        return FALCON_PARALLEL_NORMS
    return names.attention_norm, names.mlp_norm


def _mlp_plan(
    config: ModelConfig, names: Names, index: int, ours: str, theirs: str
) -> ParameterSources:
    """Returns the sources of a layer's MLP or experts, with the norms around them."""
    hidden, ffn = config.hidden_size, config.shape_of(index).ffn_size
    plan: ParameterSources = {}

    def norm(name: str, its_name: str) -> ParameterSources:
        return norm_plan(config, names, f"{ours}.{name}", f"{theirs}.{its_name}")

    if config.has_mlp_norm:
        plan.update(norm("mlp_norm", _norm_names(config, names)[1]))
    if config.has_output_norms:
        plan.update(norm("mlp_output_norm", names.mlp_output_norm))
    if config.layer_input_size:
        size = config.layer_input_size
        gate, out = ("per_layer_input_gate",), ("per_layer_projection",)
        plan.update(_linear(f"{ours}.input_gate", theirs, gate, (size,), hidden, False))
        plan.update(_linear(f"{ours}.input_out", theirs, out, (hidden,), size, False))
        plan.update(norm("input_norm", "post_per_layer_input_norm"))
    mixture = config.mixture_of(index)
    if mixture is not None and mixture.has_own_norms:
        for name, its_name in _MIXTURE_NORMS.items():
            plan.update(norm(name, its_name))
        vectors = {"router_scale": hidden, "expert_scales": mixture.num_experts}
        for name, size in vectors.items():
            its_name = f"{theirs}.{getattr(names, name)}"
            plan[f"{ours}.{name}"] = (SourceTensor(its_name, (size,)),)
    if mixture is not None:
        return plan | _mixture_plan(config, mixture, names, ours, theirs)
    all_up = 2 * ffn if config.is_mlp_gated else ffn
    up_rows = (all_up // len(names.up),) * len(names.up)
    plan.update(_linear(f"{ours}.up", theirs, names.up, up_rows, hidden, config.has_mlp_bias))
    plan.update(_linear(f"{ours}.down", theirs, (names.down,), (hidden,), ffn, config.has_mlp_bias))
    return plan


_MIXTURE_NORMS = {  # Gemma 4's
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_output_norm": "post_feedforward_layernorm_2",
    "shared_output_norm": "post_feedforward_layernorm_1",
}


def input_plan(config: ModelConfig) -> ParameterSources:
    """Returns the sources of vectors that layers read besides the residual."""
    size = config.layer_inputs_size
    projection = ("per_layer_model_projection",)
    norm = SourceTensor("model.per_layer_projection_norm.weight", (config.layer_input_size,))
    tokens = (config.layer_input_tokens, size)
    embedding = SourceTensor("model.embed_tokens_per_layer.weight", tokens)
    return {
        LAYER_INPUTS: (embedding,),
        **_linear("inputs", "model", projection, (size,), config.hidden_size, False),
        "inputs.norm": (norm,),
    }


def stream_plan(config: ModelConfig) -> ParameterSources:
    """Returns the sources of what makes further streams of the residual, and joins them again."""
    plan: ParameterSources = {}
    others, hidden = range(config.num_streams - 1), config.hidden_size
    for ours, theirs in (("in", "altup_projections"), ("out", "altup_unembed_projections")):
        names = tuple(f"{theirs}.{number}" for number in others)
        rows = (hidden,) * len(names)
        plan.update(_linear(f"streams_{ours}", "model", names, rows, hidden, has_bias=False))
    return plan


def _altup_plan(config: ModelConfig, ours: str, theirs: str) -> ParameterSources:
    """Returns the sources of what a layer does with the streams of the residual."""
    streams, hidden = config.num_streams, config.hidden_size
    tensors = {
        "norm": ("router_norm.weight", (hidden,)),
        "router": ("modality_router.weight", (streams, hidden)),
        "predict": ("prediction_coefs.weight", (streams**2, streams)),
        "correct": ("correction_coefs.weight", (streams, streams)),
        "scale": ("correct_output_scale", (hidden,)),
    }
    return {
        f"{ours}{ALTUP}.{name}": (SourceTensor(f"{theirs}{ALTUP}.{its_name}", shape),)
        for name, (its_name, shape) in tensors.items()
    }


def _laurel_plan(config: ModelConfig, names: Names, ours: str, theirs: str) -> ParameterSources:
    """Returns the sources of a map of low rank beside attention."""
    rank, hidden = (config.laurel_rank,), config.hidden_size
    left, right = ("laurel.linear_left",), ("laurel.linear_right",)
    return {
        **_linear(f"{ours}.laurel_in", theirs, left, rank, hidden, has_bias=False),
        **_linear(f"{ours}.laurel_out", theirs, right, (hidden,), *rank, has_bias=False),
        **norm_plan(config, names, f"{ours}.laurel_norm", f"{theirs}.laurel.post_laurel_norm"),
    }


def _mixture_plan(
    config: ModelConfig, mixture: MixtureConfig, names: Names, ours: str, theirs: str
) -> ParameterSources:
    """Returns the sources of a mixture. The experts' gate and up projections are stacked, expert by
    expert, and so are their down projections and biases. Shared experts form a separate MLP."""
    count, ffn, hidden = mixture.num_experts, mixture.ffn_size, config.hidden_size
    inner = mixture.latent_size or hidden
    experts = [f"{names.experts}.{expert}" for expert in range(count)]
    ups = tuple(f"{expert}.{name}" for expert in experts for name in names.expert_up)
    downs = tuple(f"{expert}.{names.expert_down}" for expert in experts)
    has_biases = mixture.has_biases
    plan = {
        **_linear(f"{ours}{ROUTER}", theirs, (names.router,), (count,), hidden, has_biases),
        **_linear(f"{ours}.up", theirs, ups, (ffn,) * len(ups), inner, has_biases),
        **_linear(f"{ours}.down", theirs, downs, (inner,) * count, ffn, has_biases),
    }
    if mixture.latent_size:
        to, back = ("mixer.fc1_latent_proj",), ("mixer.fc2_latent_proj",)
        plan.update(_linear(f"{ours}.latent_down", theirs, to, (inner,), hidden, False))
        plan.update(_linear(f"{ours}.latent_up", theirs, back, (hidden,), inner, False))
    if mixture.has_selection_bias:
        bias = SourceTensor(f"{theirs}.{names.selection_bias}", (count,))
        plan[f"{ours}{ROUTER}.selection_bias"] = (bias,)
    shared = mixture.shared_ffn_size
    if shared:
        all_up = 2 * shared if config.is_mlp_gated else shared
        ups = tuple(f"{names.shared}.{name}" for name in names.shared_up or names.expert_up)
        down = f"{names.shared}.{names.shared_down or names.expert_down}"
        up_rows = (all_up // len(ups),) * len(ups)
        plan.update(_linear(f"{ours}.shared_up", theirs, ups, up_rows, hidden, False))
        plan.update(_linear(f"{ours}.shared_down", theirs, (down,), (hidden,), shared, False))
    if mixture.has_shared_gate:
        plan.update(
            _linear(f"{ours}.shared_gate", theirs, (names.shared_gate,), (1,), hidden, False)
        )
    return plan


def _recurrent_plan(
    recurrent: RecurrentConfig, names: Names, ours: str, theirs: str, hidden: int
) -> ParameterSources:
    channels, has_bias, heads = recurrent.conv_dim, recurrent.has_bias, recurrent.heads
    vectors: dict[str, int] = {}
    keys, columns = recurrent.key_heads * recurrent.key_dim, recurrent.out_columns
    apart = (keys, keys, columns, columns)  # queries, keys, values and what gates them
    joined = {1: (recurrent.in_floats,), 2: (channels, columns)}
    in_rows = joined.get(len(names.mixer_in), apart[: len(names.mixer_in)])
    conv_rows = (channels,) if len(names.conv) == 1 else apart[:3]
    plan = {
        **_linear(f"{ours}.in", theirs, names.mixer_in, in_rows, hidden, has_bias),
        f"{ours}.conv.weight": tuple(
            SourceTensor(f"{theirs}.{name}.weight", (rows, 1, recurrent.conv_width))
            for name, rows in zip(names.conv, conv_rows, strict=True)
        ),
        **_linear(f"{ours}.mixer_out", theirs, (names.mixer_out,), (hidden,), columns, has_bias),
    }
    if recurrent.has_conv_bias:
        [conv] = names.conv
        plan[f"{ours}.conv.bias"] = (SourceTensor(f"{theirs}.{conv}.bias", (channels,)),)
    if recurrent.kind == "delta":
        step_rows = (2 * heads // len(names.steps),) * len(names.steps)
        plan.update(_linear(f"{ours}.steps", theirs, names.steps, step_rows, hidden, False))
        plan = {
            name: tuple(replace(p, head_order=delta_order(recurrent, p.name)) for p in parts)
            for name, parts in plan.items()
        }
        vectors = {"decays": heads, "step_bias": heads, "head_norm": recurrent.value_dim}
    elif recurrent.kind == "kimi_delta":
        rank = recurrent.gate_rank
        step_rows = (heads, rank, rank)
        plan.update(_linear(f"{ours}.steps", theirs, names.steps, step_rows, hidden, False))
        plan.update(_linear(f"{ours}.gates", theirs, (names.gates,), (columns,), rank, False))
        plan.update(_linear(f"{ours}.forgets", theirs, (names.forgets,), (keys,), rank, False))
        vectors = {"decays": heads, "step_bias": keys, "head_norm": recurrent.value_dim}
    elif recurrent.kind == "mamba2":
        vectors = {"decays": heads, "step_bias": heads, "skip": heads}
        if recurrent.has_norm:
            vectors["head_norm"] = columns
    for name, size in vectors.items():
        its_name = f"{theirs}.{getattr(names, name)}"
        plan[f"{ours}.{name}"] = (SourceTensor(its_name, (size,)),)
    return plan


def _with_values_apart(config: ModelConfig, ours: str, qkv: ParameterSources) -> ParameterSources:
    """Returns the plan with a separate parameter for values if these have another form: files with
    K-quants often have values in more bits."""
    *others, values = (config.kept_bits.get(part.name) for part in qkv[f"{ours}.qkv.weight"])
    if len(set(others)) != 1 or values in others:
        return qkv
    apart = {name.replace(".qkv.", ".values."): parts[-1:] for name, parts in qkv.items()}
    return {name: parts[:-1] for name, parts in qkv.items()} | apart


def _qkv_part(config: ModelConfig, names: Names, part: SourceTensor) -> SourceTensor:
    """Returns how the rows of queries, keys or values map to ours. A fused tensor has for each
    key-value head its queries, key and value, which covers Falcon's layouts with 1, some or all
    heads. Queries may alternate with their gates."""
    head = config.head_dim
    order: tuple[int, ...] = ()
    if names.is_qkv_grouped:
        order = part_by_part(config.num_kv_heads, (config.num_groups * head, head, head))
    elif config.has_output_gates and ".q_proj." in part.name:
        order = part_by_part(config.num_heads, (head, head))
    elif names.is_interleaved and ".v_proj." not in part.name:
        order = rotary_order(config)
    return replace(part, head_order=order)


def _latent_plan(
    config: ModelConfig, latent: LatentConfig, ours: str, theirs: str
) -> ParameterSources:
    """Returns the sources of latent attention. In the checkpoint, the turned dimensions are at the
    end of each head; here they are at the beginning."""
    hidden, heads, kv_rank = config.hidden_size, config.num_heads, latent.kv_rank
    unturned = config.head_dim - config.rotary_dim

    def linear(
        name: str, its_name: str, rows: int, columns: int, has_bias: bool = False
    ) -> ParameterSources:
        return _linear(
            f"{ours}.{name}", f"{theirs}.self_attn", (its_name,), (rows,), columns, has_bias
        )

    def ordered(plan: ParameterSources, begin: int, end: int) -> ParameterSources:
        order = rotary_order(config, begin, end)
        return {name: (replace(part, head_order=order),) for name, (part,) in plan.items()}

    def norm(name: str, its_name: str, rank: int) -> ParameterSources:
        return {
            f"{ours}.{name}.weight": (
                SourceTensor(f"{theirs}.self_attn.{its_name}.weight", (rank,)),
            )
        }

    plan: ParameterSources = {}
    queries_of, its_name = hidden, "q_proj"
    if latent.query_rank is not None:
        queries_of, its_name = latent.query_rank, "q_b_proj"
        plan.update(linear("q_a", "q_a_proj", queries_of, hidden, config.has_qkv_bias))
        plan.update(norm("q_a_norm", "q_a_layernorm", queries_of))
    queries = linear("q_b", its_name, heads * config.head_dim, queries_of)
    plan.update(ordered(queries, unturned, config.head_dim))
    rows = kv_rank + config.rotary_dim
    kv_a = linear("kv_a", "kv_a_proj_with_mqa", rows, hidden, config.has_qkv_bias)
    plan.update(ordered(kv_a, kv_rank, rows))
    plan.update(norm("kv_a_norm", "kv_a_layernorm", kv_rank))
    plan.update(linear("kv_b", "kv_b_proj", heads * (unturned + latent.value_dim), kv_rank))
    return plan


def _linear(
    ours: str,
    theirs: str,
    names: tuple[str, ...],
    rows: tuple[int, ...],
    columns: int,
    has_bias: bool,
) -> ParameterSources:
    def parts(kind: str, *tail: int) -> Iterator[SourceTensor]:
        for name, num_rows in zip(names, rows, strict=True):
            yield SourceTensor(f"{theirs}.{name}.{kind}", (num_rows, *tail))

    plan = {f"{ours}.weight": tuple(parts("weight", columns))}
    if has_bias:
        plan[f"{ours}.bias"] = tuple(parts("bias"))
    return plan


def norm_plan(config: ModelConfig, names: Names, ours: str, theirs: str) -> ParameterSources:
    shape = (config.hidden_size,)
    weight = SourceTensor(f"{theirs}.weight", shape, offset=names.norm_offset)
    plan: ParameterSources = {f"{ours}.weight": (weight,)}
    if config.norm == "layer":
        plan[f"{ours}.bias"] = (SourceTensor(f"{theirs}.bias", shape),)
    return plan
