"""Resolves an engine's options for a checkpoint, and finds why it cannot be served with them."""

from dataclasses import replace
from typing import NamedTuple

from inference_api.errors import shown
from inference_api.kernels.build import multiplies_tiles
from inference_api.kernels.packing import BITS, FLOAT_BITS, GROUP, MAX_HEAD_DIM, Bits
from inference_api.loading.config import ModelConfig
from inference_api.loading.files import has_mtp
from inference_api.loading.layout import Tensors, held_bits, linear_weights, matrices, spared
from inference_api.loading.memory import Footprint
from inference_api.loading.options import EngineOptions
from inference_api.loading.quantised.formats import FLOATS


class Settled(NamedTuple):
    """A model, options with nothing left to choose, and reasons why they do not fit together."""

    whole: ModelConfig
    options: EngineOptions
    faults: list[str]

    def footprint(self, is_packed_file: bool = False) -> Footprint:
        """Returns the memory of this process's layers. `is_packed_file`: see `Footprint.of`."""
        whole, options, _ = self
        by_torch = options.device == "cuda"
        bits = None if by_torch and options.quantization == "none" else weight_bits(options)
        config = options.part_of(whole)
        return Footprint.of(config, options, bits, is_packed_file, by_torch=by_torch)


def settle(config: ModelConfig, requested: EngineOptions, tensors: Tensors) -> Settled:
    """Returns the model and options, resolved, with faults. A device of auto is the CPU."""
    device = "cuda" if requested.device == "cuda" else "cpu"
    options = _settled(config, requested, tensors)
    faults = _quantization_faults(config, options) + device_faults(config, options)
    faults += _experts_faults(config, options)
    wants_mtp = requested.has_mtp and requested.device != "cuda"
    whole = replace(config, has_mtp=wants_mtp and has_mtp(tensors, config))
    whole = _kept(whole, requested, tensors)
    return Settled(whole, options.on(device, _keeps_bfloat16(config, tensors)), faults)


def context_faults(config: ModelConfig, max_seq_len: int | None) -> list[str]:
    """Returns a fault if the model's context is shorter than MAX_SEQ_LEN."""
    if max_seq_len is None or max_seq_len <= config.max_positions:
        return []
    return [
        f"MAX_SEQ_LEN={max_seq_len} exceeds the model's {config.max_positions} positions; "
        "lower it or unset it."
    ]


def _settled(config: ModelConfig, options: EngineOptions, tensors: Tensors) -> EngineOptions:
    """Returns the options with QUANTIZATION=auto and file resolved for a checkpoint.

    They become none if no matrix is quantised, or on CUDA if some cannot be packed; file if some
    are used as they are in the file (see `_kept`); else int8.
    """
    if options.quantization not in ("auto", "file"):
        return options
    is_uneven = options.device == "cuda" and bool(_uneven(config))
    if is_uneven or not _is_quantised(config, tensors):
        return replace(options, quantization="none")
    is_kept = _kept(config, options, tensors).kept_bits
    return replace(options, quantization="file" if is_kept else "int8")


def _kept(config: ModelConfig, options: EngineOptions, tensors: Tensors) -> ModelConfig:
    """Returns the config with the forms of matrices that are not packed like the others.

    Under QUANTIZATION=file, matrices of fewer than 8 bits stay as they are in the file, if the
    kernels support their form. The same holds under auto, unless the processor multiplies whole
    tiles, which support only int8 and int4 and are faster with many rows. On CUDA, both keep the
    matrices that int4 holds unchanged. Under int4, the output head and the value projections become
    int8, unless the file has them in groups of 4 bits, because rounding these costs most quality.
    """
    on_cuda = options.device == "cuda"
    if on_cuda and _uneven(config):  # see `_settled`
        return config
    if options.quantization == "int4":
        return replace(config, kept_bits=dict.fromkeys(spared(config, tensors), BITS["int8"]))
    is_wanted = options.quantization == "file" or (
        options.quantization == "auto" and (on_cuda or not multiplies_tiles())
    )
    if not is_wanted:
        return config
    return replace(config, kept_bits=held_bits(config, tensors, on_cuda))


def _is_quantised(config: ModelConfig, tensors: Tensors) -> bool:
    """Returns whether any matrix of the checkpoint is quantised."""
    return config.quantisation is not None or any(
        tensors[part.name].dtype not in FLOATS for part in matrices(config) if part.name in tensors
    )


def _quantization_faults(config: ModelConfig, options: EngineOptions) -> list[str]:
    """Returns a fault if weights cannot be quantised on CUDA. `options` are settled."""
    uneven = _uneven(config)
    if options.device != "cuda" or options.quantization == "none" or not uneven:
        return []
    return [
        f"QUANTIZATION={options.quantization} needs weights with a multiple of {GROUP} columns; "
        f"these differ: {shown(uneven)}; set QUANTIZATION=none."
    ]


def _uneven(config: ModelConfig) -> list[str]:
    """Returns the weights that cannot be packed."""
    parts = [part for parts in linear_weights(config).values() for part in parts]
    return [f"{part.name} {part.shape}" for part in parts if part.shape[1] % GROUP]


def device_faults(config: ModelConfig, options: EngineOptions) -> list[str]:
    """Returns faults if the device, or a split model, does not support the layers or the cache."""
    kinds = {"recurrent layers": config.recurrent, "layers of different shapes": config.shapes}
    faults = []
    for kind in [name for name, is_there in kinds.items() if is_there]:
        if options.device == "cuda":
            faults.append(f"{config.family} has {kind}, not there yet on CUDA; set DEVICE=cpu.")
        if options.layers is not None:
            faults.append(f"{config.family} has {kind}, which cannot be split; unset SPLIT.")
    if options.device == "cuda" and options.kv_cache_dtype == "int4":
        faults.append("KV_CACHE_DTYPE=int4 is for the CPU; unset it or set DEVICE=cpu.")
    return faults


def expert_layers(config: ModelConfig) -> list[int]:
    return [layer for layer in range(config.num_layers) if config.mixture_of(layer)]


def _experts_faults(config: ModelConfig, options: EngineOptions) -> list[str]:
    """Returns faults if the CPU cannot take the experts of EXPERTS_ON_CPU layers from a GPU."""
    count, num_layers = options.experts_on_cpu, len(expert_layers(config))
    if not count:
        return []
    faults = kernel_faults(config)
    if options.layers is not None:
        faults.append("a split model keeps its experts with their layers")
    if count > num_layers:
        faults.append(f"{num_layers} layers of the model have experts")
    return [f"EXPERTS_ON_CPU={count}: {fault}; lower it, or set it to 0." for fault in faults]


def cpu_faults(config: ModelConfig, options: EngineOptions) -> list[str]:
    """Returns faults, with remedies, if the model cannot be decoded on the CPU."""
    faults = kernel_faults(config)
    faults = [f"{fault}; set DEVICE=cuda or choose another model." for fault in faults]
    if options.experts_on_cpu:
        setting = f"EXPERTS_ON_CPU={options.experts_on_cpu}"
        faults.append(f"{setting} is for a GPU, and the CPU has all layers; unset it.")
    return faults


def kernel_faults(config: ModelConfig) -> list[str]:
    """Returns why the kernels cannot decode this model, without a remedy."""
    faults = []
    widest = max(shape.head_dim for shape in config.layer_shapes)
    if widest > MAX_HEAD_DIM:
        faults.append(f"head_dim={widest} exceeds {MAX_HEAD_DIM}, the kernels' limit")
    latent = config.latent
    if latent is not None and latent.kv_rank + config.rotary_dim > MAX_HEAD_DIM:
        faults.append(
            f"kv_lora_rank={latent.kv_rank} and qk_rope_head_dim={config.rotary_dim} exceed "
            f"{MAX_HEAD_DIM} together, the kernels' limit"
        )
    if uneven := _uneven(config):
        faults.append(
            f"the kernels need weights with a multiple of {GROUP} columns; these differ: "
            f"{shown(uneven)}"
        )
    return faults


def weight_bits(options: EngineOptions) -> Bits:
    """Returns the form in which the kernels hold weights that do not stay as in the file. `options`
    are settled, and their dtype is not auto."""
    if options.quantization == "none":
        return FLOAT_BITS[options.dtype]
    return BITS["int8" if options.quantization == "file" else options.quantization]


def _keeps_bfloat16(config: ModelConfig, tensors: Tensors) -> bool:
    """Returns whether the checkpoint's matrices are bfloat16, which the kernels use unchanged.
    Vectors are float32 in any case."""
    return all(
        part.name in tensors and tensors[part.name].dtype == "BF16" for part in matrices(config)
    )
