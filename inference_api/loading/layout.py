"""The parameters of a model: the checkpoint tensors they are made of, and their forms in memory."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from inference_api.kernels.packing import (
    BITS,
    FACTOR_OUTPUTS,
    FLOAT_BITS,
    PANEL,
    Bits,
    group_inputs,
    packed_bytes,
)
from inference_api.loading.config import ModelConfig
from inference_api.loading.families.layer_plan import (
    ALTUP,
    LAYER_INPUTS,
    ROUTER,
    ParameterSources,
    SourceTensor,
    input_plan,
    layer_plan,
    norm_plan,
    stream_plan,
)
from inference_api.loading.families.tensor_names import SCHEMES
from inference_api.loading.gguf import KEPT_BITS, NVFP4

EMBEDDING, HEAD = "embedding", "head"
MTP = "mtp."  # prefix of the parameters of the layer that guesses further tokens
EMBEDDINGS = (EMBEDDING, LAYER_INPUTS)
KV_B = ".kv_b."  # in the name of the matrix that maps latents to keys and values
K_B, V_B = ".k_b.", ".v_b."  # in the names of the kernels' matrices instead: see `latent_forms`
_EXACT = (f"{ROUTER}.", ".shared_gate.", ".steps.", ".forgets.", f"{ALTUP}.")
VECTOR_BYTES = FLOAT_BITS["float32"] // 8  # bytes of an element
_FLOAT_BITS = {bits // 8: bits for bits in FLOAT_BITS.values()}  # keys are bytes of a dtype


class StoredTensor(NamedTuple):
    """A tensor in a file. `dtype` is the name in safetensors or GGUF: F32, BF16, Q8_0, …"""

    shape: tuple[int, ...]
    dtype: str


Tensors = Mapping[str, StoredTensor]  # keys are names


class TensorForm(NamedTuple):
    """How a parameter is stored in memory: packed in `bits`, or as a tensor."""

    shape: tuple[int, ...]
    bits: Bits | None
    element_bytes: int

    @property
    def num_bytes(self) -> int:
        if self.bits is None:
            return prod(self.shape) * self.element_bytes
        outputs, inputs = self.shape
        return packed_bytes(self.bits, outputs, inputs)


def name_of_text_model(name: str) -> str:
    """Returns the name that a multimodal model's tensor has in a text model."""
    inner = name.removeprefix("language_model.")
    return inner if inner != name else name.replace("model.language_model.", "model.", 1)


def weight_plan(config: ModelConfig) -> ParameterSources:
    """Returns every parameter of the decoder, with the checkpoint tensors it is made of.

    Layers are counted from the first one of this process.
    """
    names = SCHEMES[config.tensor_names]
    vocab = (config.vocab_size, config.hidden_size)
    embedding = SourceTensor(f"{names.embedding}.weight", vocab)
    plan: ParameterSources = {}
    if config.has_ends and not config.backbone_size:
        plan[EMBEDDING] = (embedding,)
    if config.layer_input_size:
        plan.update(input_plan(config))
    if config.num_streams > 1:
        plan.update(stream_plan(config))
    for index in range(config.num_layers):
        plan.update(layer_plan(config, names, index))
    if not config.has_ends:
        return plan
    plan.update(norm_plan(config, names, "final_norm", names.final_norm))
    if not config.is_head_tied:
        plan[HEAD] = (SourceTensor("lm_head.weight", vocab),)
    elif config.backbone_size:  # it reads the other model's embeddings
        plan[HEAD] = (embedding,)
    if config.backbone_size:  # from and to the hidden size of the model that this one drafts for
        size, outer = config.hidden_size, config.backbone_size
        plan["pre_projection.weight"] = (SourceTensor("pre_projection.weight", (size, 2 * outer)),)
        plan["post_projection.weight"] = (SourceTensor("post_projection.weight", (outer, size)),)
    return plan | (mtp_plan(config) if config.has_mtp else {})


def mtp_plan(config: ModelConfig) -> ParameterSources:
    """Returns the parameters of the layer that guesses further tokens, whether or not it is loaded,
    named like a model of one layer after the prefix MTP. Empty if the naming scheme has none."""
    names, hidden = SCHEMES[config.tensor_names], config.hidden_size
    if names.mtp is None:
        return {}
    mtp_names = names.mtp.behind(config.num_layers)
    prefix, _, number = mtp_names.layer.rpartition(".")
    layer = replace(config.mtp, first_layer=int(number))
    plan = layer_plan(layer, replace(names, layer=prefix), 0)
    for name in ("embedding_norm", "hidden_norm", "final_norm"):
        plan.update(norm_plan(config, names, name, getattr(mtp_names, name)))
    projection = SourceTensor(f"{mtp_names.projection}.weight", (hidden, 2 * hidden))
    plan["projection.weight"] = (projection,)
    return {f"{MTP}{parameter}": parts for parameter, parts in plan.items()}


def parameter_shape(parts: tuple[SourceTensor, ...]) -> tuple[int, ...]:
    """Returns the shape of `parts`, stacked by rows."""
    return (sum(part.shape[0] for part in parts), *parts[0].shape[1:])


def linear_weights(config: ModelConfig) -> ParameterSources:
    """Returns the weights of all linear maps, including a tied output head."""
    plan = weight_plan(config)
    weights = {
        name: parts
        for name, parts in plan.items()
        if name.endswith(".weight") and len(parts[0].shape) == 2
    }
    if config.has_ends:
        weights[HEAD] = plan[HEAD if HEAD in plan else EMBEDDING]
    return weights


def matrices(config: ModelConfig) -> list[SourceTensor]:
    """Returns the matrices of a checkpoint, without exact ones: see `is_exact`."""
    plan = weight_plan(config)
    parts = [part for name in plan if not is_exact(name) for part in plan[name]]
    return [part for part in parts if len(part.shape) == 2]


def is_exact(name: str) -> bool:
    """Returns whether a parameter stays float32 under any quantisation.

    Routers do, because a slightly different choice of experts makes another model. So do small
    parameters on which everything depends.
    """
    return any(each in name for each in _EXACT)


def spared(config: ModelConfig, tensors: Tensors) -> list[str]:
    """Returns the tensors that QUANTIZATION=int4 packs as int8: the output head, and value
    projections that are not fused."""
    weights = linear_weights(config)
    qkv = [parts for name, parts in weights.items() if name.endswith(".qkv.weight")]
    values = [parts[-1] for parts in qkv if len(parts) > 1]
    names = [part.name for part in (*weights.get(HEAD, ()), *values)]
    return [name for name in names if not is_int4(name, config, tensors)]


def num_rounded(config: ModelConfig, tensors: Tensors) -> int:
    """Returns how many of the layers' matrices QUANTIZATION=int4 rounds to 4 bits."""
    parts = [
        part
        for name, parts in linear_weights(config).items()
        if name.startswith("layers.") and not is_exact(name)
        for part in parts
    ]
    names = [part.name for part in parts if part.name not in config.kept_bits]
    return sum(not is_int4(name, config, tensors) for name in names)


def is_int4(name: str, config: ModelConfig, tensors: Tensors) -> bool:
    """Returns whether the file, like the kernels, has the tensor in groups of 4 bits, no zeros."""
    if name in tensors:
        return tensors[name].dtype == "Q4_0"
    return config.quantisation is not None and config.quantisation.is_plain_int4


def held_bits(config: ModelConfig, tensors: Tensors, on_cuda: bool) -> dict[str, Bits]:
    """Returns the forms of fewer than 8 bits in which matrices stay as they are in the file, by the
    matrices' names."""
    if on_cuda:
        names = [part.name for part in matrices(config)]
        return {name: BITS["int4"] for name in names if is_int4(name, config, tensors)}
    forms = {part.name: _bits_in_file(part, config, tensors) for part in matrices(config)}
    return {name: bits for name, bits in forms.items() if bits is not None}


def _bits_in_file(part: SourceTensor, config: ModelConfig, tensors: Tensors) -> Bits | None:
    kind = tensors[part.name].dtype if part.name in tensors else ""
    form = config.quantisation and config.quantisation.form
    if form in ("nvfp4", "nvfp4_packed") and kind in ("", "U8"):
        kind = NVFP4
    bits = KEPT_BITS.get(kind)
    if bits is None or kind != NVFP4:
        return bits
    rows, inputs = part.shape
    is_whole = rows % FACTOR_OUTPUTS == 0 and inputs % group_inputs(bits) == 0
    return bits if is_whole and not part.factors else None


def num_layers_in(names: Iterable[str], config: ModelConfig) -> int:
    """Returns one more than the highest layer number among tensor names."""
    scheme = SCHEMES[config.tensor_names]
    layer = re.compile(rf"{re.escape(scheme.layer)}\.(\d{{1,9}})\.")
    return 1 + max((int(found[1]) for name in names if (found := layer.match(name))), default=-1)


def parameter_forms(
    config: ModelConfig, dtype_bytes: int, bits: Bits | None
) -> dict[str, TensorForm]:
    """Returns the form of every loaded parameter, by name. A tied head is listed only if it is
    packed differently from the embedding.

    With `bits`, linear maps are packed in that form, or in the form that `config.kept_bits` gives
    for all of their tensors; exact ones are packed as float32. Vectors are then float32 whatever
    the dtype, because the kernels read no others, and embeddings take the fewest bits that hold the
    checkpoint's values unchanged.
    """
    plan = weight_plan(config)
    packed = {} if bits is None else linear_weights(config)
    vector_bytes = dtype_bytes if bits is None else VECTOR_BYTES
    embedding_bits = {
        name: config.embedding_bits.get(name, _FLOAT_BITS[dtype_bytes])
        for name in EMBEDDINGS
        if name in plan
    }
    head_bits = kept_bits(config, packed[HEAD]) if HEAD in packed else None
    if config.is_head_tied and embedding_bits.get(EMBEDDING) == (head_bits or bits):
        packed.pop(HEAD, None)
    forms = {}
    for name, parts in (plan | packed).items():
        shape = parameter_shape(parts)
        if is_exact(name):
            packed_bits = FLOAT_BITS["float32"] if name in packed else None
            forms[name] = TensorForm(shape, packed_bits, VECTOR_BYTES)
        elif name in embedding_bits and bits is not None:
            forms[name] = TensorForm(shape, embedding_bits[name], element_bytes=1)
        elif name in packed and KV_B in name:
            forms.update(latent_forms(config, name, bits))
        elif name in packed:
            forms[name] = TensorForm(shape, kept_bits(config, parts) or bits, element_bytes=1)
        else:
            forms[name] = TensorForm(shape, None, vector_bytes)
    return forms


def torch_forms(config: ModelConfig, dtype_bytes: int, bits: Bits | None) -> dict[str, TensorForm]:
    """Returns the form of every parameter that torch loads, by name. With `bits`, linear maps are
    packed except exact ones, and an embedding is packed if the file has it packed; the output head
    then shares it if both have the same form. Everything else is a tensor, float32 if exact."""
    forms = parameter_forms(config, dtype_bytes, None)
    if bits is None or bits in FLOAT_BITS.values():
        return forms
    weights = linear_weights(config)
    packed: dict[str, Bits] = {
        name: kept_bits(config, parts) or bits
        for name, parts in weights.items()
        if not is_exact(name)
    }
    embedded = config.embedding_bits.get(EMBEDDING)
    if EMBEDDING in forms and embedded is not None and embedded in BITS.values():
        packed[EMBEDDING] = embedded
        if config.is_head_tied and packed[HEAD] == embedded:
            del packed[HEAD]
    plan = weight_plan(config) | weights
    return forms | {
        name: TensorForm(parameter_shape(plan[name]), of_all, 1) for name, of_all in packed.items()
    }


def latent_forms(config: ModelConfig, name: str, bits: Bits | None) -> dict[str, TensorForm]:
    """Returns the forms of two matrices that replace the one from latents to keys and values, since
    the kernels read latents directly. For each head, one maps the unturned part of a query to a
    query for latents [rank, …], the other a latent to a value […, rank], padded to whole panels."""
    assert config.latent is not None
    heads, rank = config.num_heads, config.latent.kv_rank
    unturned = whole_panels(config.head_dim - config.rotary_dim)
    values = whole_panels(config.latent.value_dim)
    return {
        name.replace(KV_B, K_B): TensorForm((heads * rank, unturned), bits, 1),
        name.replace(KV_B, V_B): TensorForm((heads * values, rank), bits, 1),
    }


def whole_panels(size: int) -> int:
    return -(-size // PANEL) * PANEL


def kept_bits(config: ModelConfig, parts: tuple[SourceTensor, ...]) -> Bits | None:
    """Returns the form in which all tensors of a parameter stay unchanged, or None."""
    forms = {config.kept_bits.get(part.name) for part in parts}
    return forms.pop() if len(forms) == 1 else None


def num_parameters(config: ModelConfig) -> int:
    """Returns the number of elements of all parameters."""
    return sum(prod(part.shape) for parts in weight_plan(config).values() for part in parts)
