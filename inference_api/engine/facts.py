"""Describes a runner for people."""

import torch

from inference_api.engine.weight_form import WeightForm
from inference_api.loading.config import ModelConfig
from inference_api.loading.layout import num_parameters
from inference_api.loading.memory import Footprint
from inference_api.runner import RunnerFacts


def facts_of(
    config: ModelConfig,
    form: WeightForm,
    footprint: Footprint,
    threads: int,
    cache_dtype: torch.dtype,
) -> RunnerFacts:
    """`config` and `footprint` are of the whole model."""
    device = form.options.device
    return RunnerFacts(
        family=config.family,
        num_parameters=num_parameters(config),
        num_layers=config.num_layers,
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        threads=threads,
        kernels=form.kernels,
        dtype=form.options.dtype,
        quantization=form.quantization,
        kv_cache_dtype=str(cache_dtype).removeprefix("torch."),
        weights_bytes=footprint.weights_bytes,
        cache_bytes=footprint.cache_bytes,
    )
