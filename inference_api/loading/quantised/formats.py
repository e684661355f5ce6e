"""Reads the quantisation in a config.json, and lists the tensors that make up a matrix.

Formats: FP8 as published by Qwen and DeepSeek, compressed-tensors (float, int, packed and NVFP4),
ModelOpt's NVFP4, AWQ's gemm layout, GPTQ and GPTQv2, and gpt-oss's MXFP4. `quantised.weights`
converts the tensors.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from inference_api.loading.config import Quantisation, QuantisedForm
from inference_api.loading.families.fields import MAX_COUNT, ConfigFields
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.json_files import read_json
from inference_api.loading.layout import Tensors

WORD_BITS = 32
FLOATS = ("F32", "F16", "BF16")
WORDS = ("I32",)
BYTES = ("U8",)
MXFP4_BLOCK = 32  # inputs that share a scale, in 16 bytes
NVFP4_BLOCK = 16  # inputs that share a scale, in 8 bytes
WEIGHT = ".weight"
MODELOPT = "hf_quant_config.json"
WHOLE = 0  # as a block's size: all outputs, or all inputs
MAX_NAME = 64  # characters of a group's name in messages
MAX_GROUPS = 16  # in a compressed-tensors config; published ones have one or two

Shape = tuple[int, ...]
Choice = TypeVar("Choice", str, int, bool)


class Wanted(NamedTuple):
    """A tensor that must be in the files, in one of these shapes; the first is the usual one."""

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = ()  # empty: any that can be read


class Wants(NamedTuple):
    """The tensors of one matrix; None for those that its format does not have."""

    weight: Wanted
    scale: Wanted | None = None
    zero: Wanted | None = None
    order: Wanted | None = None
    factor: Wanted | None = None  # multiplies all numbers of the matrix, or divides them


def wants(part: SourceTensor, quantisation: Quantisation | None, tensors: Tensors) -> Wants:
    """Returns the tensors that make up `part`: just one if it is not quantised in the file."""
    shapes = [part.shape]
    if len(part.shape) == 1:  # some files have it as a matrix of one row, Kimi in four dimensions
        shapes += [(1, *part.shape), (1, 1, *part.shape, 1)]
    plain = Wants(Wanted(part.name, tuple(shapes)))
    if quantisation is None or len(part.shape) != 2 or not part.name.endswith(WEIGHT):
        return plain
    quantised = _FORMS[quantisation.form](part, quantisation)
    assert quantised.scale is not None
    is_plain = part.name in tensors and tensors[part.name].dtype in FLOATS
    if is_plain and quantised.scale.name not in tensors:
        return plain
    has_order = quantised.order is not None and quantised.order.name in tensors
    if not (quantisation.has_order or has_order):  # some files have an order without effect
        quantised = quantised._replace(order=None)
    return quantised


def with_quantisation(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Returns a config.json with its quantisation, which ModelOpt's older checkpoints have in a
    file of its own. Raises StartupError."""
    file = folder / MODELOPT
    if raw.get("quantization_config") or not file.exists():
        return raw
    stored = read_json(file).get("quantization")
    described = {"quant_method": "modelopt", **(stored if isinstance(stored, dict) else {})}
    return {**raw, "quantization_config": described}


def read_quantisation(fields: ConfigFields) -> Quantisation | None:
    """Returns the quantisation of `quantization_config`, if any. Adds faults to `fields`."""
    raw = fields.mapping("quantization_config")
    if not raw:
        return None
    method = raw.get("quant_method")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        methods = ", ".join(sorted(_READERS))
        fields.refuse(
            "quantization_config: quant_method", method, f"one of {methods}, or an unquantised one"
        )
        return None
    return reader(_Description(fields, f"quantization_config ({method})", raw))


class _Description:
    """An object in a quantization_config. Faults are added to the config.json's faults."""

    def __init__(self, fields: ConfigFields, name: str, raw: Mapping[str, Any]) -> None:
        self._fields = fields
        self._name = name
        self.raw = raw

    def refuse(self, field: str, supported: str) -> None:
        self._fields.refuse(f"{self._name}: {field}", self.raw.get(field), supported)

    def choice(self, field: str, *allowed: Choice) -> Choice:
        """Returns the field's value, by default the first of `allowed`."""
        value = self.raw.get(field)
        for each in allowed:
            if value is None or (value == each and type(value) is type(each)):
                return each
        self.refuse(field, " or ".join(map(str, allowed)))
        return allowed[0]

    def group_size(self) -> int:
        """Returns the inputs of a group; WHOLE if `group_size` is -1 or absent."""
        value = self.raw.get("group_size")
        if value in (None, -1):
            return WHOLE
        if _is_count(value):
            return int(value)
        self.refuse("group_size", f"an integer from 1 to {MAX_COUNT}, or -1")
        return WHOLE

    def block(self, field: str) -> tuple[int, int]:
        match self.raw.get(field):
            case [rows, columns] if _is_count(rows) and _is_count(columns):
                return rows, columns
        self.refuse(field, "two integers, like [128, 128]")
        return WHOLE, WHOLE

    def part(self, field: str) -> "_Description":
        value = self.raw.get(field)
        if not isinstance(value, Mapping):
            self.refuse(field, "an object there")
            value = {}
        return _Description(self._fields, f"{self._name}: {field[:MAX_NAME]}", value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT


def _read_fp8(given: _Description) -> Quantisation:
    """Activations are not quantised here, so fields about them are not read."""
    given.choice("fmt", "e4m3")
    if given.raw.get("weight_block_size") is None:
        return Quantisation("float8", 8, (WHOLE, WHOLE), "weight_scale")
    return Quantisation("float8", 8, given.block("weight_block_size"), "weight_scale_inv")


def _read_gptq(given: _Description) -> Quantisation:
    if given.raw.get("dynamic"):
        given.refuse("dynamic", "the same bits and groups in all layers")
    form = given.choice("checkpoint_format", "gptq", "gptq_v2")
    return Quantisation(
        "gptq",
        given.choice("bits", 4, 8),
        (1, given.group_size()),
        has_zeros=given.raw.get("sym") is False,  # otherwise every zero is the middle
        zero_offset=1 if form == "gptq" else 0,
        has_order=given.choice("desc_act", False, True),
    )


def _read_awq(given: _Description) -> Quantisation:
    given.choice("version", "gemm", "GEMM")
    given.choice("zero_point", True)
    bits = given.choice("bits", 4)
    return Quantisation("awq", bits, (1, given.group_size()), has_zeros=True)


def _read_compressed_tensors(given: _Description) -> Quantisation | None:
    sparsity = given.raw.get("sparsity_config")
    if sparsity and given.part("sparsity_config").raw.get("format") != "dense":
        given.refuse("sparsity_config", "weights that are not sparse")
    groups = given.part("config_groups")
    if not 1 <= len(groups.raw) <= MAX_GROUPS:
        given.refuse("config_groups", f"1 to {MAX_GROUPS} groups")
        return None
    kinds = {_read_group(groups.part(name), given) for name in groups.raw}
    if len(kinds) > 1:
        given.refuse("config_groups", "groups whose weights are stored in one way")
    return kinds.pop()


def _read_group(group: _Description, whole: _Description) -> Quantisation:
    described = group if group.raw.get("format") is not None else whole
    form = described.choice(
        "format",
        *("pack-quantized", "float-quantized", "int-quantized", "naive-quantized"),
        "nvfp4-pack-quantized",
    )
    weights = group.part("weights")
    if form == "nvfp4-pack-quantized":
        weights.choice("type", "float")
        weights.choice("strategy", "tensor_group")
        return _nvfp4_in("nvfp4_packed", weights)
    strategy = weights.choice("strategy", "tensor", "channel", "group", "block")
    block = {"tensor": (WHOLE, WHOLE), "channel": (1, WHOLE)}.get(strategy)
    if strategy == "group":
        block = (1, weights.group_size())
    elif strategy == "block":
        block = weights.block("block_structure")
    assert block is not None
    if form == "pack-quantized":
        weights.choice("type", "int")
        return Quantisation(
            "packed",
            weights.choice("num_bits", 4, 8),
            block,
            "weight_scale",
            has_zeros=not weights.choice("symmetric", True, False),
            has_order=weights.choice("actorder", "none", "group", "weight", "static") == "group",
        )
    weights.choice("num_bits", 8)
    weights.choice("symmetric", True)
    is_float = weights.choice("type", "int", "float") == "float"
    if is_float != (form == "float-quantized") and form != "naive-quantized":
        weights.refuse("type", f"the type that {form} has")
    return Quantisation("float8" if is_float else "int8", 8, block, "weight_scale")


def _read_modelopt(given: _Description) -> Quantisation:
    given.choice("quant_algo", "NVFP4")
    return _nvfp4_in("nvfp4", given)


def _nvfp4_in(form: QuantisedForm, given: _Description) -> Quantisation:
    given.choice("num_bits", 4)
    given.choice("group_size", NVFP4_BLOCK)
    return Quantisation(form, 4, (1, NVFP4_BLOCK), "weight_scale")


_READERS: dict[str, Callable[[_Description], Quantisation | None]] = {
    "awq": _read_awq,
    "compressed-tensors": _read_compressed_tensors,
    "fp8": _read_fp8,
    "gptq": _read_gptq,
    "modelopt": _read_modelopt,
    # Only the experts of gpt-oss; its other tensors are not quantised.
    "mxfp4": lambda given: Quantisation("mxfp4", 4, (1, MXFP4_BLOCK)),
}


def num_blocks(part: SourceTensor, quantisation: Quantisation) -> tuple[int, int]:
    """Returns the number of blocks over a matrix's outputs, and over its inputs."""
    rows, columns = (
        -(-size // (block or size))
        for size, block in zip(part.shape, quantisation.block, strict=True)
    )
    return rows, columns


def _words(num_values: int, quantisation: Quantisation) -> int:
    return -(-num_values * quantisation.bits // WORD_BITS)


def _bytes(part: SourceTensor, quantisation: Quantisation) -> Wants:
    """Returns the tensors of an FP8 or int8 matrix, with one byte for each value."""
    dtype = "F8_E4M3" if quantisation.form == "float8" else "I8"
    return Wants(Wanted(part.name, (part.shape,), (dtype,)), _scale(part, quantisation))


def _scale(part: SourceTensor, quantisation: Quantisation) -> Wanted:
    """Returns the tensor of scales. Files leave out dimensions of size 1."""
    rows, columns = num_blocks(part, quantisation)
    shapes: list[Shape] = [(rows, columns)]
    if columns == 1:
        shapes.append((rows,))
    if rows == columns == 1:
        shapes.append(())
    return Wanted(f"{_stem(part)}.{quantisation.scale_name}", tuple(shapes), FLOATS)


def _mxfp4(part: SourceTensor, quantisation: Quantisation) -> Wants:
    """Returns the tensors of a single expert, under the names that `stacks` gives them."""
    outputs, blocks = num_blocks(part, quantisation)
    stem = _stem(part)
    return Wants(
        Wanted(f"{stem}.blocks", ((outputs, blocks, MXFP4_BLOCK // 2),), BYTES),
        Wanted(f"{stem}.{quantisation.scale_name}", ((outputs, blocks),), BYTES),
    )


def _nvfp4(part: SourceTensor, quantisation: Quantisation) -> Wants:
    """Returns the tensors of an NVFP4 matrix. A byte has two values, the first in its low half."""
    outputs, inputs = part.shape
    stem, values, factor = _stem(part), part.name, "weight_scale_2"
    if quantisation.form == "nvfp4_packed":
        values, factor = f"{stem}.weight_packed", "weight_global_scale"
    return Wants(
        Wanted(values, ((outputs, inputs // 2),), BYTES),
        _scale(part, quantisation)._replace(dtypes=("F8_E4M3",)),
        factor=Wanted(f"{stem}.{factor}", ((1,), ()), ("F32",)),
    )


def _packed(part: SourceTensor, quantisation: Quantisation) -> Wants:
    outputs, inputs = part.shape
    _, groups = num_blocks(part, quantisation)
    stem, zeros = _stem(part), (_words(outputs, quantisation), groups)
    return Wants(
        Wanted(f"{stem}.weight_packed", ((outputs, _words(inputs, quantisation)),), WORDS),
        _scale(part, quantisation),
        Wanted(f"{stem}.weight_zero_point", (zeros,), WORDS) if quantisation.has_zeros else None,
        Wanted(f"{stem}.weight_g_idx", ((inputs,),), WORDS),
    )


def _transposed(part: SourceTensor, quantisation: Quantisation) -> Wants:
    """Returns AWQ's tensors, with words of neighbouring outputs, or GPTQ's, of inputs."""
    outputs, inputs = part.shape
    _, groups = num_blocks(part, quantisation)
    stem, words = _stem(part), _words(outputs, quantisation)
    is_awq = quantisation.form == "awq"
    values = (inputs, words) if is_awq else (_words(inputs, quantisation), outputs)
    return Wants(
        Wanted(f"{stem}.qweight", (values,), WORDS),
        Wanted(f"{stem}.scales", ((groups, outputs),), FLOATS),
        Wanted(f"{stem}.qzeros", ((groups, words),), WORDS),
        None if is_awq else Wanted(f"{stem}.g_idx", ((inputs,),), WORDS),
    )


def _stem(part: SourceTensor) -> str:
    return part.name.removesuffix(WEIGHT)


_FORMS: dict[str, Callable[[SourceTensor, Quantisation], Wants]] = {
    "float8": _bytes,
    "int8": _bytes,
    "packed": _packed,
    "awq": _transposed,
    "gptq": _transposed,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "nvfp4_packed": _nvfp4,
}
