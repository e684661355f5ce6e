"""Copies of tiny models whose matrices are quantised, written value by value as the formats say.

Numbers are drawn, not rounded: integers, zeros and scales are random, and a copy in float32 has the
numbers that these stand for.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
Tensors = dict[str, Tensor]
Draw = Callable[[str, int, int], tuple[Tensors, Tensor]]  # stem, outputs, inputs: stored, numbers


def words_along(values: Tensor, dimension: int, bits: int, places: tuple[int, ...] = ()) -> Tensor:
    """Integers packed into int32, so many along a dimension, low bits first."""
    per_word = 32 // bits
    moved = values.movedim(dimension, -1)
    rows = moved.reshape(-1, moved.shape[-1]).tolist()
    packed = []
    for row in rows:
        words = [0] * -(-len(row) // per_word)
        for index, value in enumerate(row):
            place = (places or tuple(range(per_word)))[index % per_word]
            words[index // per_word] |= value << (bits * place)
        packed.append([word - 2**32 if word >= 2**31 else word for word in words])
    whole = torch.tensor(packed, dtype=torch.int32).reshape(*moved.shape[:-1], -1)
    return whole.movedim(-1, dimension).contiguous()


@dataclass(frozen=True)
class Integers:
    """Random integers, their zeros and scales; a group of -1 is all inputs."""

    bits: int
    group: int
    outputs: int
    inputs: int
    generator: torch.Generator
    is_symmetric: bool = False
    is_shuffled: bool = False

    def drawn(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Values [outputs, inputs], zeros and scales [outputs, groups], the group of each input,
        and the numbers."""
        group = self.inputs if self.group == -1 else self.group
        groups = -(-self.inputs // group)
        middle = 2 ** (self.bits - 1)
        # -128 has no place in the kernels' bytes: a test of its own is about that.
        values = self._integers(1, 2**self.bits, self.outputs, self.inputs)
        zeros = torch.full((self.outputs, groups), middle)
        if not self.is_symmetric:
            zeros = self._integers(1, 2**self.bits, self.outputs, groups)
        scales = torch.rand(self.outputs, groups, generator=self.generator).half() / 2**self.bits
        order = torch.arange(self.inputs) // group
        if self.is_shuffled:
            order = order[torch.randperm(self.inputs, generator=self.generator)]
        numbers = torch.empty(self.outputs, self.inputs)
        for column, block in enumerate(order.tolist()):
            difference = values[:, column] - zeros[:, block]
            numbers[:, column] = difference * scales[:, block].float()
        return values, zeros, scales, order, numbers

    def _integers(self, least: int, end: int, *shape: int) -> Tensor:
        return torch.randint(least, end, shape, generator=self.generator)


def gptq(
    bits: int,
    group: int,
    *,
    is_v2: bool = False,
    is_shuffled: bool = False,
    is_symmetric: bool = False,
) -> Draw:
    generator = torch.Generator().manual_seed(1)

    def draw(stem: str, outputs: int, inputs: int) -> tuple[Tensors, Tensor]:
        drawn = Integers(bits, group, outputs, inputs, generator, is_symmetric, is_shuffled)
        values, zeros, scales, order, numbers = drawn.drawn()
        stored = {
            f"{stem}.qweight": words_along(values.T, 0, bits),
            f"{stem}.qzeros": words_along((zeros if is_v2 else zeros - 1).T, 1, bits),
            f"{stem}.scales": scales.T.contiguous(),
            f"{stem}.g_idx": order.int(),
        }
        return stored, numbers

    return draw


def awq(group: int) -> Draw:
    generator = torch.Generator().manual_seed(2)

    def draw(stem: str, outputs: int, inputs: int) -> tuple[Tensors, Tensor]:
        values, zeros, scales, _, numbers = Integers(4, group, outputs, inputs, generator).drawn()
        stored = {
            f"{stem}.qweight": words_along(values.T, 1, 4, AWQ_PLACES),
            f"{stem}.qzeros": words_along(zeros.T, 1, 4, AWQ_PLACES),
            f"{stem}.scales": scales.T.contiguous(),
        }
        return stored, numbers

    return draw


def packed(bits: int, group: int, *, is_symmetric: bool = True, is_shuffled: bool = False) -> Draw:
    generator = torch.Generator().manual_seed(3)

    def draw(stem: str, outputs: int, inputs: int) -> tuple[Tensors, Tensor]:
        drawn = Integers(bits, group, outputs, inputs, generator, is_symmetric, is_shuffled)
        values, zeros, scales, order, numbers = drawn.drawn()
        stored = {
            f"{stem}.weight_packed": words_along(values, 1, bits),
            f"{stem}.weight_scale": scales,
            f"{stem}.weight_shape": torch.tensor([outputs, inputs]),
        }
        if not is_symmetric:
            stored[f"{stem}.weight_zero_point"] = words_along(zeros, 0, bits)
        if is_shuffled:
            stored[f"{stem}.weight_g_idx"] = order.int()
        return stored, numbers

    return draw


def scaled(block: tuple[int, int], scale_name: str, kind: torch.dtype) -> Draw:
    """Bytes, and a scale for each block; 0 stands for all outputs or inputs."""
    generator = torch.Generator().manual_seed(4)

    def draw(stem: str, outputs: int, inputs: int) -> tuple[Tensors, Tensor]:
        rows, columns = block[0] or outputs, block[1] or inputs
        shape = (-(-outputs // rows), -(-inputs // columns))
        scales = torch.rand(shape, generator=generator) / 100
        if kind == torch.int8:
            values = torch.randint(-127, 128, (outputs, inputs), generator=generator).to(kind)
        else:
            values = (torch.randn(outputs, inputs, generator=generator) * 20).to(kind)
        by_row = scales.repeat_interleave(rows, 0)[:outputs]
        numbers = values.float() * by_row.repeat_interleave(columns, 1)[:, :inputs]
        stored_scales = scales.reshape(1) if shape == (1, 1) else scales
        return {f"{stem}.weight": values, f"{stem}.{scale_name}": stored_scales}, numbers

    return draw


def nvfp4(names: tuple[str, str], *, is_divided: bool) -> Draw:
    """Floats of four bits, two a byte, `names`: of those and of the matrix's factor."""
    generator = torch.Generator().manual_seed(5)
    positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat((positive, -positive))

    def draw(stem: str, outputs: int, inputs: int) -> tuple[Tensors, Tensor]:
        codes = torch.randint(16, (outputs, inputs), generator=generator, dtype=torch.uint8)
        scales = (torch.rand(outputs, inputs // 16, generator=generator) * 40).to(FLOAT8)
        factor = (1 + torch.rand(1, generator=generator)) * (1000.0 if is_divided else 0.001)
        whole = scales.float() / factor if is_divided else scales.float() * factor
        stored = {
            f"{stem}.{names[0]}": codes[:, 0::2] | codes[:, 1::2] << 4,
            f"{stem}.weight_scale": scales,
            f"{stem}.{names[1]}": factor if is_divided else factor.reshape(()),
        }
        return stored, values[codes.long()] * whole.repeat_interleave(16, 1)

    return draw


def compressed(format_name: str, **weights: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors."""
    is_float = format_name in ("float-quantized", "nvfp4-pack-quantized")
    kind = {"type": "float" if is_float else "int", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**kind, **weights}}},
        "ignore": ["lm_head"],
    }


def compressed_words(bits: int, group: int, **weights: Any) -> dict[str, Any]:
    strategy = {"strategy": "channel"} if group == -1 else {"strategy": "group"}
    return compressed(
        "pack-quantized",
        num_bits=bits,
        group_size=None if group == -1 else group,
        **strategy,
        **weights,
    )


FLOAT8 = torch.float8_e4m3fn
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}

# name: (quantization_config, how its tensors are drawn)
QUANTISED: dict[str, tuple[dict[str, Any], Draw]] = {
    "fp8-blocks": (
        {**FP8, "weight_block_size": [40, 48]},
        scaled((40, 48), "weight_scale_inv", FLOAT8),
    ),
    "fp8-tensor": (FP8, scaled((0, 0), "weight_scale", FLOAT8)),
    "float-channel": (
        compressed("float-quantized", num_bits=8, strategy="channel"),
        scaled((1, 0), "weight_scale", FLOAT8),
    ),
    "float-blocks": (
        compressed("float-quantized", num_bits=8, strategy="block", block_structure=[32, 40]),
        scaled((32, 40), "weight_scale", FLOAT8),
    ),
    "int-channel": (
        compressed("int-quantized", num_bits=8, strategy="channel"),
        scaled((1, 0), "weight_scale", torch.int8),
    ),
    "packed-4": (compressed_words(4, 32), packed(4, 32)),
    "packed-4-zeros": (
        compressed_words(4, 64, symmetric=False),
        packed(4, 64, is_symmetric=False),
    ),
    "packed-4-order": (
        compressed_words(4, 32, actorder="group"),
        packed(4, 32, is_shuffled=True),
    ),
    "packed-8": (compressed_words(8, -1), packed(8, -1)),
    "packed-8-zeros": (
        compressed_words(8, 32, symmetric=False),
        packed(8, 32, is_symmetric=False),
    ),
    "nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        nvfp4(("weight", "weight_scale_2"), is_divided=False),
    ),
    "nvfp4-packed": (
        compressed("nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", group_size=16),
        nvfp4(("weight_packed", "weight_global_scale"), is_divided=True),
    ),
    "awq": ({**AWQ, "group_size": 32}, awq(32)),
    "awq-whole": ({**AWQ, "group_size": -1}, awq(-1)),
    "gptq": (GPTQ, gptq(4, 32)),
    "gptq-symmetric": ({**GPTQ, "sym": True}, gptq(4, 32, is_symmetric=True)),
    "gptq-odd-groups": ({**GPTQ, "group_size": 40}, gptq(4, 40)),
    "gptq-order": ({**GPTQ, "desc_act": True}, gptq(4, 32, is_shuffled=True)),
    "gptq-8": ({**GPTQ, "bits": 8}, gptq(8, 32)),
    "gptq-v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(4, 32, is_v2=True)),
}


def make_quantised(folder: Path, name: str, target: Path) -> tuple[Path, Path]:
    """Copies of the model in `folder`: quantised as `name`, and those numbers in float32."""
    config, draw = QUANTISED[name]
    quantised, plain = target / "quantised", target / "plain"
    for copy in (quantised, plain):
        copytree(folder, copy)
    stored, numbers = split(load_file(folder / "model.safetensors"), draw)
    save_file(stored, quantised / "model.safetensors")
    save_file(numbers, plain / "model.safetensors")
    describe(quantised, config)
    return quantised, plain


def split(tensors: Mapping[str, Tensor], draw: Draw) -> tuple[Tensors, Tensors]:
    stored: Tensors = {}
    numbers: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and "embed" not in name and name != "lm_head.weight":
            made, numbers[name] = draw(name.removesuffix(".weight"), *tensor.shape)
            stored.update(made)
        else:
            stored[name] = numbers[name] = tensor
    return stored, numbers


def make_mxfp4(folder: Path, target: Path) -> tuple[Path, Path]:
    """Copies of the gpt-oss in `folder`: one whose experts are random MXFP4, as published, and one
    that has them by transformers."""
    quantised, plain = target / "quantised", target / "plain"
    for copy in (quantised, plain):
        copytree(folder, copy)
    stored, numbers = {}, load_file(plain / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in numbers.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(118, 126, shape, generator=generator, dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        whole = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        numbers[name] = whole.view(tensor.shape).contiguous()
    save_file(stored, quantised / "model.safetensors")
    save_file(numbers, plain / "model.safetensors")
    describe(quantised, {"quant_method": "mxfp4"})
    return quantised, plain


def describe(folder: Path, config: dict[str, Any]) -> None:
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(described))
