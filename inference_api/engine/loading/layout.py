"""The layout of parameters: the checkpoint tensors that make up each. Loads no torch.

Query, key and value projections are one parameter here, and so are the gate and up projections
of an MLP: one matrix product instead of three or two. A parameter's parts are stacked by rows.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from inference_api.engine.loading.config import MixtureConfig, ModelConfig, TensorNames
from inference_api.kernels.packing import FLOAT_BITS, MAX_HEAD_DIM, Bits, packed_bytes

HEAD = "head"
ROUTER = ".router"
NAMES_SHOWN = 5
VECTOR_BYTES = FLOAT_BITS["float32"] // 8  # of an element


class StoredTensor(NamedTuple):
    """A tensor as a file has it; `dtype` is what safetensors and GGUF call it: F32, BF16, Q8_0 …"""

    shape: tuple[int, ...]
    dtype: str


Tensors = Mapping[str, StoredTensor]  # by name


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a checkpoint.

    `is_grouped_qkv`: its rows hold, for each key-value head in turn, that head's queries, key
    and value (all of Falcon's fused layouts are this one, with 1, some or all heads as groups);
    ours are all queries, then all keys, then all values.
    """

    name: str
    shape: tuple[int, ...]
    is_grouped_qkv: bool = False


@dataclass(frozen=True, slots=True)
class _Names:
    """A naming scheme: prefix of everything, and what modules are called below it."""

    embedding: str
    final_norm: str
    layer: str
    attention_norm: str
    mlp_norm: str
    qkv: tuple[str, ...]
    out: str
    up: tuple[str, ...]
    down: str
    router: str = ""  # of a mixture
    experts: str = ""  # below it their numbers, and below these the two that follow
    expert_up: tuple[str, ...] = ()
    expert_down: str = ""


_LLAMA = _Names(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    layer="model.layers",
    attention_norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.o_proj",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    router="mlp.gate",
    experts="mlp.experts",
    expert_up=("gate_proj", "up_proj"),
    expert_down="down_proj",
)
_MIXTRAL = replace(
    _LLAMA,
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts",
    expert_up=("w1", "w3"),
    expert_down="w2",
)
_FALCON = _Names(
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h",
    attention_norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    qkv=("self_attention.query_key_value",),
    out="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
_SCHEMES: Mapping[TensorNames, _Names] = {
    "llama": _LLAMA,
    "mixtral": _MIXTRAL,
    "falcon": _FALCON,
}
_FALCON_PARALLEL_NORMS = ("ln_attn", "ln_mlp")  # when a parallel layer has two

Plan = dict[str, tuple[Part, ...]]  # parts by parameter name


class Form(NamedTuple):
    """How a parameter lies in memory: packed in `bits`, or as a tensor."""

    shape: tuple[int, ...]
    bits: Bits | None
    element_bytes: int

    @property
    def num_bytes(self) -> int:
        if self.bits is None:
            return prod(self.shape) * self.element_bytes
        outputs, inputs = self.shape
        return packed_bytes(self.bits, outputs, inputs)


def weight_plan(config: ModelConfig) -> Plan:
    """Every parameter of the decoder and the checkpoint tensors it is made of.

    Layers are counted from the first that this process has.
    """
    names = _SCHEMES[config.tensor_names]
    vocab = (config.vocab_size, config.hidden_size)
    plan: Plan = {}
    if config.has_ends:
        plan["embedding"] = (Part(f"{names.embedding}.weight", vocab),)
    for index in range(config.num_layers):
        plan.update(_layer_plan(config, names, index))
    if not config.has_ends:
        return plan
    plan.update(_norm(config, "final_norm", names.final_norm))
    if not config.is_head_tied:
        plan[HEAD] = (Part("lm_head.weight", vocab),)
    return plan


def parameter_shape(parts: tuple[Part, ...]) -> tuple[int, ...]:
    """The shape of the parameter that `parts` make up when stacked by rows."""
    return (sum(part.shape[0] for part in parts), *parts[0].shape[1:])


def linear_weights(config: ModelConfig) -> Plan:
    """The weights of all linear maps, the output head's among them even when it is tied."""
    plan = weight_plan(config)
    weights = {
        name: parts
        for name, parts in plan.items()
        if name.endswith(".weight") and len(parts[0].shape) == 2
    }
    if config.has_ends:
        weights[HEAD] = plan["embedding" if config.is_head_tied else HEAD]
    return weights


def matrices(config: ModelConfig) -> list[Part]:
    """Returns the parts of a checkpoint that are matrices, without routers: see `is_router`."""
    plan = weight_plan(config)
    parts = [part for name in plan if not is_router(name) for part in plan[name]]
    return [part for part in parts if len(part.shape) > 1]


def is_router(name: str) -> bool:
    """Whether a parameter, by its name here, chooses experts. It is float32 in every form: it is
    small, and a slightly different choice makes another model."""
    return name.endswith(f"{ROUTER}.weight")


def num_stacked(config: ModelConfig, name: str) -> int:
    """How many matrices a parameter stacks: one for each expert, else it is one."""
    found = re.fullmatch(r"layers\.(\d+)\.(up|down)\.weight", name)
    mixture = None if found is None else config.mixture_of(int(found[1]))
    return 1 if mixture is None else mixture.num_experts


def num_layers_in(names: Iterable[str], config: ModelConfig) -> int:
    """Layers of which there is any tensor, up to the last."""
    scheme = _SCHEMES[config.tensor_names].layer
    layer = re.compile(rf"{re.escape(scheme)}\.(\d{{1,9}})\.")
    return 1 + max((int(found[1]) for name in names if (found := layer.match(name))), default=-1)


def decodes_by_kernels(config: ModelConfig, bits: Bits | None) -> bool:
    """Whether the kernels run whole steps: of all that a config can say they only limit heads."""
    return bits is not None and config.head_dim <= MAX_HEAD_DIM


def parameter_forms(config: ModelConfig, dtype_bytes: int, bits: Bits | None) -> dict[str, Form]:
    """Every parameter that is loaded, by name; a tied head only where it is packed.

    Linear maps are packed in `bits` or not at all, routers then as float32. Where the kernels run
    whole steps, vectors are float32 whatever the dtype is: they read no others.
    """
    packed = {} if bits is None else linear_weights(config)
    vector_bytes = VECTOR_BYTES if decodes_by_kernels(config, bits) else dtype_bytes
    forms = {}
    for name, parts in (weight_plan(config) | packed).items():
        shape = parameter_shape(parts)
        if is_router(name):
            forms[name] = Form(shape, None if bits is None else FLOAT_BITS["float32"], VECTOR_BYTES)
        elif name in packed:
            forms[name] = Form(shape, bits, element_bytes=1)
        else:
            forms[name] = Form(shape, None, vector_bytes if len(shape) == 1 else dtype_bytes)
    return forms


def weight_bytes(config: ModelConfig, dtype_bytes: int, bits: Bits | None) -> int:
    """Memory that the parameters take once they are loaded, packed in `bits` or not at all."""
    return sum(form.num_bytes for form in parameter_forms(config, dtype_bytes, bits).values())


def num_parameters(config: ModelConfig) -> int:
    """Elements of all parameters together."""
    return sum(prod(part.shape) for parts in weight_plan(config).values() for part in parts)


def shown(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _layer_plan(config: ModelConfig, names: _Names, index: int) -> Plan:
    theirs, ours = f"{names.layer}.{config.first_layer + index}", f"layers.{index}"
    hidden, ffn, head = config.hidden_size, config.ffn_size, config.head_dim
    kv = config.num_kv_heads * head
    queries = config.num_heads * head
    qkv_rows = (queries, kv, kv) if len(names.qkv) == 3 else (queries + 2 * kv,)
    attention_norm, mlp_norm = names.attention_norm, names.mlp_norm
    if config.is_parallel and config.has_mlp_norm:
        attention_norm, mlp_norm = _FALCON_PARALLEL_NORMS

    plan: Plan = {}
    plan.update(_norm(config, f"{ours}.attention_norm", f"{theirs}.{attention_norm}"))
    plan.update(_linear(f"{ours}.qkv", theirs, names.qkv, qkv_rows, hidden, config.has_qkv_bias))
    if config.has_qk_norm:
        plan[f"{ours}.q_norm"] = (Part(f"{theirs}.self_attn.q_norm.weight", (head,)),)
        plan[f"{ours}.k_norm"] = (Part(f"{theirs}.self_attn.k_norm.weight", (head,)),)
    plan.update(
        _linear(f"{ours}.out", theirs, (names.out,), (hidden,), queries, config.has_out_bias)
    )
    if config.has_mlp_norm:
        plan.update(_norm(config, f"{ours}.mlp_norm", f"{theirs}.{mlp_norm}"))
    mixture = config.mixture_of(index)
    if mixture is not None:
        return plan | _mixture_plan(mixture, names, ours, theirs, hidden)
    up_rows = (ffn,) * len(names.up)
    plan.update(_linear(f"{ours}.up", theirs, names.up, up_rows, hidden, config.has_mlp_bias))
    plan.update(_linear(f"{ours}.down", theirs, (names.down,), (hidden,), ffn, config.has_mlp_bias))
    return plan


def _mixture_plan(
    mixture: MixtureConfig, names: _Names, ours: str, theirs: str, hidden: int
) -> Plan:
    """Experts follow each other, each as an MLP has it: gates, then what passes them; then all
    their ways down."""
    experts = [f"{theirs}.{names.experts}.{expert}" for expert in range(mixture.num_experts)]
    ffn = mixture.ffn_size
    return {
        f"{ours}{ROUTER}.weight": (
            Part(f"{theirs}.{names.router}.weight", (mixture.num_experts, hidden)),
        ),
        f"{ours}.up.weight": tuple(
            Part(f"{expert}.{name}.weight", (ffn, hidden))
            for expert in experts
            for name in names.expert_up
        ),
        f"{ours}.down.weight": tuple(
            Part(f"{expert}.{names.expert_down}.weight", (hidden, ffn)) for expert in experts
        ),
    }


def _linear(
    ours: str,
    theirs: str,
    names: tuple[str, ...],
    rows: tuple[int, ...],
    columns: int,
    has_bias: bool,
) -> Plan:
    is_grouped = ours.endswith(".qkv") and len(names) == 1

    def parts(kind: str, *tail: int) -> Iterator[Part]:
        for name, num_rows in zip(names, rows, strict=True):
            yield Part(f"{theirs}.{name}.{kind}", (num_rows, *tail), is_grouped)

    plan = {f"{ours}.weight": tuple(parts("weight", columns))}
    if has_bias:
        plan[f"{ours}.bias"] = tuple(parts("bias"))
    return plan


def _norm(config: ModelConfig, ours: str, theirs: str) -> Plan:
    shape = (config.hidden_size,)
    plan: Plan = {f"{ours}.weight": (Part(f"{theirs}.weight", shape),)}
    if config.norm == "layer":
        plan[f"{ours}.bias"] = (Part(f"{theirs}.bias", shape),)
    return plan
