"""The checkpoint tensors that make up the parameters of a layer.

Query, key and value projections are one parameter here, and so are the gate and up projections
of an MLP: one matrix product instead of three or two. A parameter's parts are stacked by rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from inference_api.loading.config import LatentConfig, MixtureConfig, ModelConfig, RowFactor
from inference_api.loading.families.recurrence import RecurrentConfig
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
    `rotary_order`."""
    offset: float = 0.0  # added to each value
    factors: tuple[RowFactor, ...] = ()  # factors of rows, applied one after another

    @property
    def row_factors(self) -> NDArray[np.float32]:
        sizes = [each.rows or self.shape[0] for each in self.factors]
        return np.repeat([np.float32(each.factor) for each in self.factors], sizes)


ParameterSources = dict[str, tuple[SourceTensor, ...]]  # parts by parameter name


def layer_plan(config: ModelConfig, names: Names, index: int) -> ParameterSources:
    recurrent = config.recurrent_of(index)
    if recurrent is not None and recurrent.has_norms_before:
        config = replace(config, has_attention_norm=True, has_mlp_norm=True, has_output_norms=False)
    layer = _Layer(config, names, index)
    layer.add_mixer()
    if config.has_layer_scalars:
        layer.vector("output_scale", names.layer_scalar, 1)
    if config.has_mlp(index):
        layer.add_mlp()
    if config.num_streams > 1:
        layer.add_altup()
    if config.laurel_rank:
        layer.add_laurel()
    factors = {f"{layer.module}.{n}.weight": each for n, each in config.weight_factors.items()}
    return {
        parameter: tuple(replace(part, factors=factors.get(part.name, ())) for part in parts)
        for parameter, parts in layer.plan.items()
    }


class _Layer:
    """Collects the sources of a layer's parameters. Parameters' names begin with `name`,
    tensors' with `module`."""

    def __init__(self, config: ModelConfig, names: Names, index: int) -> None:
        self.plan: ParameterSources = {}
        self.name, self.module = f"layers.{index}", f"{names.layer}.{config.first_layer + index}"
        self._config, self._names, self._index = config, names, index

    def linear(
        self,
        parameter: str,
        names: tuple[str, ...] | str,
        rows: tuple[int, ...] | int,
        columns: int,
        has_bias: bool = False,
    ) -> None:
        """See `_linear`."""
        name, module = f"{self.name}.{parameter}", self.module
        self.plan |= _linear(name, module, names, rows, columns, has_bias)

    def norm(self, parameter: str, tensor: str) -> None:
        names = (f"{self.name}.{parameter}", f"{self.module}.{tensor}")
        self.plan |= norm_plan(self._config, self._names, *names)

    def vector(self, parameter: str, tensor: str, *shape: int, offset: float = 0.0) -> None:
        source = SourceTensor(f"{self.module}.{tensor}", shape, offset=offset)
        self.plan[f"{self.name}.{parameter}"] = (source,)

    def add_mixer(self) -> None:
        """Add attention and the recurrent mixer, if the layer has them."""
        config, names, shape = self._config, self._names, self._config.shape_of(self._index)
        hidden, head = config.hidden_size, shape.head_dim
        kv = shape.num_kv_heads * head
        queries, values = config.num_heads * head, config.num_heads * shape.value_dim
        num_kinds = 1 if shape.kv_source is not None else 2 + shape.has_values
        attends, recurrent = config.attends(self._index), config.recurrent_of(self._index)
        if config.has_attention_norm and (attends or recurrent is not None):
            self.norm("attention_norm", self._norm_names[0])
        if recurrent is not None:
            self._add_recurrent(recurrent)
        if attends and config.latent is None:
            query_rows = queries * (1 + config.has_output_gates)
            rows = (query_rows, kv, kv) if len(names.qkv) == 3 else (query_rows + 2 * kv,)
            parts = (names.qkv[:num_kinds], rows[:num_kinds])
            qkv = _linear(f"{self.name}.qkv", self.module, *parts, hidden, config.has_qkv_bias)
            qkv = {n: tuple(_qkv_part(config, names, p) for p in parts) for n, parts in qkv.items()}
            self.plan |= _with_values_apart(config, self.name, qkv)
        elif attends and config.latent is not None:
            self._add_latent(config.latent)
        if config.has_qk_norm and attends:
            sizes = (queries, kv) if config.is_qk_norm_whole else (head, head)
            kinds = list(zip(("q_norm", "k_norm"), names.qk_norm, sizes, strict=True))
            for name, tensor_name, size in kinds[:num_kinds]:
                self.vector(name, f"{tensor_name}.weight", size, offset=names.norm_offset)
        if attends:
            self.linear("out", names.out, hidden, values, config.has_out_bias)
        if config.has_sinks:
            self.vector("sinks", names.sinks, config.num_heads)
        if config.has_output_norms:
            self.norm("attention_output_norm", names.attention_output_norm)

    @property
    def _norm_names(self) -> tuple[str, str]:
        """Returns the names of the norms before attention and before the MLP."""
        if self._config.is_parallel and self._config.has_mlp_norm:
            return FALCON_PARALLEL_NORMS
        return self._names.attention_norm, self._names.mlp_norm

    def add_mlp(self) -> None:
        """Add the MLP or experts, with the norms around them."""
        config, names, size = self._config, self._names, self._config.layer_input_size
        if names.is_mlp_next and config.attends(self._index):
            self.module = f"{names.layer}.{config.first_layer + self._index + 1}"
        hidden, ffn = config.hidden_size, config.shape_of(self._index).ffn_size
        if config.has_mlp_norm:
            self.norm("mlp_norm", self._norm_names[1])
        if config.has_output_norms:
            self.norm("mlp_output_norm", names.mlp_output_norm)
        if size:
            self.linear("input_gate", "per_layer_input_gate", size, hidden)
            self.linear("input_out", "per_layer_projection", hidden, size)
            self.norm("input_norm", "post_per_layer_input_norm")
        if (mixture := config.mixture_of(self._index)) is not None:
            self._add_mixture(mixture)
            return
        all_up = 2 * ffn if config.is_mlp_gated else ffn
        self.linear("up", names.up, all_up, hidden, config.has_mlp_bias)
        self.linear("down", names.down, hidden, ffn, config.has_mlp_bias)

    def add_altup(self) -> None:
        """Add the parameters with which the layer updates the streams of the residual."""
        streams, hidden = self._config.num_streams, self._config.hidden_size
        tensors = {
            "norm": ("router_norm.weight", (hidden,)),
            "router": ("modality_router.weight", (streams, hidden)),
            "predict": ("prediction_coefs.weight", (streams**2, streams)),
            "correct": ("correction_coefs.weight", (streams, streams)),
            "scale": ("correct_output_scale", (hidden,)),
        }
        for name, (tensor_name, shape) in tensors.items():
            self.vector(f"{ALTUP[1:]}.{name}", f"{ALTUP[1:]}.{tensor_name}", *shape)

    def add_laurel(self) -> None:
        """Add the map of low rank beside attention."""
        rank, hidden = self._config.laurel_rank, self._config.hidden_size
        self.linear("laurel_in", "laurel.linear_left", rank, hidden)
        self.linear("laurel_out", "laurel.linear_right", hidden, rank)
        self.norm("laurel_norm", "laurel.post_laurel_norm")

    def _add_mixture(self, mixture: MixtureConfig) -> None:
        """Add a mixture. The experts' gate and up projections are stacked, expert by expert, as are
        their down projections and biases. Shared experts form a separate MLP."""
        config, names, hidden = self._config, self._names, self._config.hidden_size
        count, ffn, inner = mixture.num_experts, mixture.ffn_size, mixture.latent_size or hidden
        if mixture.has_own_norms:
            for name, tensor_name in _MIXTURE_NORMS.items():
                self.norm(name, tensor_name)
            self.vector("router_scale", names.router_scale, hidden)
            self.vector("expert_scales", names.expert_scales, count)
        experts = [f"{names.experts}.{expert}" for expert in range(count)]
        ups = tuple(f"{expert}.{name}" for expert in experts for name in names.expert_up)
        downs = tuple(f"{expert}.{names.expert_down}" for expert in experts)
        self.linear(ROUTER[1:], names.router, count, hidden, mixture.has_biases)
        self.linear("up", ups, ffn * len(ups), inner, mixture.has_biases)
        self.linear("down", downs, inner * count, ffn, mixture.has_biases)
        if mixture.latent_size:
            self.linear("latent_down", "mixer.fc1_latent_proj", inner, hidden)
            self.linear("latent_up", "mixer.fc2_latent_proj", hidden, inner)
        if mixture.has_selection_bias:
            self.vector(f"{ROUTER[1:]}.selection_bias", names.selection_bias, count)
        if shared := mixture.shared_ffn_size:
            all_up = 2 * shared if config.is_mlp_gated else shared
            ups = tuple(f"{names.shared}.{name}" for name in names.shared_up or names.expert_up)
            down = f"{names.shared}.{names.shared_down or names.expert_down}"
            self.linear("shared_up", ups, all_up, hidden)
            self.linear("shared_down", down, hidden, shared)
        if mixture.has_shared_gate:
            self.linear("shared_gate", names.shared_gate, 1, hidden)

    def _add_recurrent(self, recurrent: RecurrentConfig) -> None:
        layer, self.module = self.module, f"{self.module}.{self._names.mixer}"
        names, hidden, heads = self._names, self._config.hidden_size, recurrent.heads
        keys, columns = recurrent.key_heads * recurrent.key_dim, recurrent.out_columns
        apart = (keys, keys, columns, columns)  # queries, keys, values and their gates
        channels, has_bias = recurrent.conv_dim, recurrent.has_bias
        joined = {1: (recurrent.in_floats,), 2: (channels, columns)}
        in_rows = joined.get(len(names.mixer_in), apart[: len(names.mixer_in)])
        conv_rows = (channels,) if len(names.conv) == 1 else apart[:3]
        self.linear("in", names.mixer_in, in_rows, hidden, has_bias)
        self.plan[f"{self.name}.conv.weight"] = tuple(
            SourceTensor(f"{self.module}.{name}.weight", (rows, 1, recurrent.conv_width))
            for name, rows in zip(names.conv, conv_rows, strict=True)
        )
        self.linear("mixer_out", names.mixer_out, hidden, columns, has_bias)
        if recurrent.has_conv_bias:
            [conv] = names.conv
            self.vector("conv.bias", f"{conv}.bias", channels)
        vectors: dict[str, int] = {}
        if recurrent.kind == "delta":
            self.linear("steps", names.steps, 2 * heads, hidden)
            self.plan = {
                name: tuple(replace(p, head_order=delta_order(recurrent, p.name)) for p in parts)
                for name, parts in self.plan.items()
            }
            vectors = {"decays": heads, "step_bias": heads, "head_norm": recurrent.value_dim}
        elif recurrent.kind == "kimi_delta":
            rank = recurrent.gate_rank
            self.linear("steps", names.steps, (heads, rank, rank), hidden)
            self.linear("gates", names.gates, columns, rank)
            self.linear("forgets", names.forgets, keys, rank)
            vectors = {"decays": heads, "step_bias": keys, "head_norm": recurrent.value_dim}
        elif recurrent.kind == "mamba2":
            vectors = {"decays": heads, "step_bias": heads, "skip": heads}
            if recurrent.has_norm:
                vectors["head_norm"] = columns
        tensors = {"decays": "A_log", "step_bias": "dt_bias", "skip": "D"}
        tensors["head_norm"] = f"{names.head_norm}.weight"
        for name, size in vectors.items():
            self.vector(name, tensors[name], size)
        self.module = layer

    def _add_latent(self, latent: LatentConfig) -> None:
        """Add latent attention. In the checkpoint, the turned dimensions are at the end of each
        head; here they are at the beginning."""
        config, hidden, kv_rank = self._config, self._config.hidden_size, latent.kv_rank
        heads, unturned = config.num_heads, config.head_dim - config.rotary_dim
        queries_of, tensor_name = hidden, "q_proj"
        if latent.query_rank is not None:
            queries_of, tensor_name = latent.query_rank, "q_b_proj"
            self.linear("q_a", "self_attn.q_a_proj", queries_of, hidden, config.has_qkv_bias)
            self.vector("q_a_norm.weight", "self_attn.q_a_layernorm.weight", queries_of)
        self.linear("q_b", f"self_attn.{tensor_name}", heads * config.head_dim, queries_of)
        self._turn("q_b", unturned, config.head_dim)
        rows = kv_rank + config.rotary_dim
        self.linear("kv_a", "self_attn.kv_a_proj_with_mqa", rows, hidden, config.has_qkv_bias)
        self._turn("kv_a", kv_rank, rows)
        self.vector("kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", kv_rank)
        rows = heads * (unturned + latent.value_dim)
        self.linear("kv_b", "self_attn.kv_b_proj", rows, kv_rank)

    def _turn(self, parameter: str, begin: int, end: int) -> None:
        order = rotary_order(self._config, begin, end)
        for name in (f"{self.name}.{parameter}.weight", f"{self.name}.{parameter}.bias"):
            if name in self.plan:
                [part] = self.plan[name]
                self.plan[name] = (replace(part, head_order=order),)


_MIXTURE_NORMS = {  # Gemma 4's
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_output_norm": "post_feedforward_layernorm_2",
    "shared_output_norm": "post_feedforward_layernorm_1",
}


def input_plan(config: ModelConfig) -> ParameterSources:
    """Returns the sources of vectors that layers read besides the residual."""
    size, tokens = config.layer_inputs_size, config.layer_input_tokens
    norm = SourceTensor("model.per_layer_projection_norm.weight", (config.layer_input_size,))
    embedding = SourceTensor("model.embed_tokens_per_layer.weight", (tokens, size))
    return {
        LAYER_INPUTS: (embedding,),
        **_linear("inputs", "model", "per_layer_model_projection", size, config.hidden_size),
        "inputs.norm": (norm,),
    }


def stream_plan(config: ModelConfig) -> ParameterSources:
    """Returns the sources of the maps that make more streams of the residual, and join them."""
    plan: ParameterSources = {}
    others, hidden = config.num_streams - 1, config.hidden_size
    for parameter, tensor in (("in", "altup_projections"), ("out", "altup_unembed_projections")):
        names = tuple(f"{tensor}.{number}" for number in range(others))
        plan |= _linear(f"streams_{parameter}", "model", names, hidden * others, hidden)
    return plan


def _with_values_apart(
    config: ModelConfig, parameter: str, qkv: ParameterSources
) -> ParameterSources:
    """Returns the plan with a separate parameter for values if these have another form. Files with
    K-quants often have values in more bits."""
    *others, values = (config.kept_bits.get(part.name) for part in qkv[f"{parameter}.qkv.weight"])
    if len(set(others)) != 1 or values in others:
        return qkv
    apart = {name.replace(".qkv.", ".values."): parts[-1:] for name, parts in qkv.items()}
    return {name: parts[:-1] for name, parts in qkv.items()} | apart


def _qkv_part(config: ModelConfig, names: Names, part: SourceTensor) -> SourceTensor:
    """Returns queries, keys or values with the order of their rows. A fused tensor has for each
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


def _linear(
    parameter: str,
    tensor: str,
    names: tuple[str, ...] | str,
    rows: tuple[int, ...] | int,
    columns: int,
    has_bias: bool = False,
) -> ParameterSources:
    """Returns the sources of a linear map. `rows` are those of each part, or of all together."""
    names = (names,) if isinstance(names, str) else names
    rows = (rows // len(names),) * len(names) if isinstance(rows, int) else rows

    def parts(kind: str, *tail: int) -> Iterator[SourceTensor]:
        for name, num_rows in zip(names, rows, strict=True):
            yield SourceTensor(f"{tensor}.{name}.{kind}", (num_rows, *tail))

    plan = {f"{parameter}.weight": tuple(parts("weight", columns))}
    if has_bias:
        plan[f"{parameter}.bias"] = tuple(parts("bias"))
    return plan


def norm_plan(config: ModelConfig, names: Names, parameter: str, tensor: str) -> ParameterSources:
    shape = (config.hidden_size,)
    weight = SourceTensor(f"{tensor}.weight", shape, offset=names.norm_offset)
    plan: ParameterSources = {f"{parameter}.weight": (weight,)}
    if config.norm == "layer":
        plan[f"{parameter}.bias"] = (SourceTensor(f"{tensor}.bias", shape),)
    return plan


@cache
def part_by_part(num_heads: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns an order for rows that are grouped by head, with `sizes` rows of each part: first all
    heads' rows of the first part, then of the second, and so on."""
    rows = np.arange(num_heads * sum(sizes)).reshape(num_heads, -1)
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    return tuple(np.concatenate([part.ravel() for part in parts]).tolist())


def rotary_order(config: ModelConfig, begin: int = 0, end: int | None = None) -> tuple[int, ...]:
    """Returns for each dimension of our heads its index in a head with rotary pairs side by side.

    The pairs begin at `begin`. `end` is the size of the head, or of other rows in this order.
    """
    after = begin + config.rotary_dim
    pairs = (*range(begin, after, 2), *range(begin + 1, after, 2))
    return (*pairs, *range(begin), *range(after, end or config.head_dim))


def delta_order(recurrent: RecurrentConfig, name: str) -> tuple[int, ...]:
    """Returns the row order of a delta rule's tensor; fused ones are grouped by key head."""
    shared = recurrent.heads // recurrent.key_heads
    keys, values = recurrent.key_dim, shared * recurrent.value_dim
    if ".in_proj_qkvz." in name:
        return part_by_part(recurrent.key_heads, (keys, keys, values, values))
    return part_by_part(recurrent.key_heads, (shared, shared)) if ".in_proj_ba." in name else ()
