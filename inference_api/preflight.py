"""Checks before a worker starts that the port is free and the models can be served here.

It runs in gunicorn's arbiter, so it must not import torch.
"""

from common.connections.sockets import port_faults
from inference_api.bundle.check import check_bundle
from inference_api.core.state.page_folder import ON_CUDA, make_writable
from inference_api.errors import StartupError
from inference_api.loading import checkpoint, hardware
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.ranks import layers_of, load_rank_settings, resolved
from inference_api.settings import Settings
from inference_api.watch import telemetry


def check_start(settings: Settings, with_model: bool) -> None:
    """Raises StartupError with every fault found."""
    address = settings.service_host, settings.service_port
    faults = port_faults(*address, ("SERVICE_HOST", "SERVICE_PORT")) + telemetry.faults(settings)
    if with_model:
        faults += _model_faults(settings) if settings.bundle is None else _bundle_faults(settings)
        faults += _disk_faults(settings)
    if faults:
        raise StartupError(faults)


def _model_faults(settings: Settings) -> list[str]:
    models = settings.served_models
    faults = []
    try:
        layers = _first_layers(settings)
    except StartupError as error:
        return list(error.faults)
    if any(each.device == "cuda" for each in models):
        faults += hardware.cuda_faults()
    return faults + checkpoint.check_all(
        [
            checkpoint.RequestedModel(
                each.name,
                each.model,
                EngineOptions.from_settings(each).with_layers(layers),
                each.used_draft_model,
            )
            for each in models
        ]
    )


def _first_layers(settings: Settings) -> LayerRange | None:
    """Returns rank 0's layers of a split model; None without SPLIT. Raises StartupError."""
    if settings.split is None:
        return None
    if settings.models:
        raise StartupError("SPLIT is for one model; unset MODELS, or SPLIT.")
    num_ranks = load_rank_settings().world_size
    config = checkpoint.describe(settings.model).config
    if config is None:
        return None
    return layers_of(resolved(settings.split, config.num_layers, num_ranks), 0)


def _disk_faults(settings: Settings) -> list[str]:
    if settings.prefix_cache_dir is None:
        return []
    if settings.split is not None:
        return ["PREFIX_CACHE_DIR is for models on one machine; unset it, or SPLIT."]
    if not settings.prefix_reuse:
        return ["PREFIX_CACHE_DIR keeps what PREFIX_REUSE=false does not read; unset one of them."]
    if any(each.device == "cuda" for each in settings.served_models):
        return [ON_CUDA]
    try:
        make_writable(settings.prefix_cache_dir)
    except OSError as error:
        return [
            f"PREFIX_CACHE_DIR={settings.prefix_cache_dir} cannot be used: {error.strerror}; name "
            "a folder that this server may write to, or unset it."
        ]
    return []


def _bundle_faults(settings: Settings) -> list[str]:
    assert settings.bundle is not None
    if settings.split is not None:
        return ["SPLIT is for one model; unset BUNDLE, or SPLIT."]
    if settings.experts_on_cpu:
        return ["EXPERTS_ON_CPU is for a model outside of a bundle; unset it, or BUNDLE."]
    validation = check_bundle(settings.bundle, settings)
    faults = [f"BUNDLE: {fault}" for fault in validation.errors]
    if settings.device == "cuda":  # GPU memory is checked when it is allocated, at bring-up
        return faults + hardware.cuda_faults()
    available_bytes = hardware.available_memory_bytes()
    if validation.utilization is None or available_bytes is None or faults:
        return faults
    need_bytes = validation.utilization.fast_memory.need_bytes
    if need_bytes > available_bytes:
        faults.append(
            f"Memory: the bundle's pinned experts and the largest other one take {need_bytes} "
            f"bytes, but only {available_bytes} are free, {need_bytes - available_bytes} too few; "
            "pin fewer, choose smaller ones or lower their quantisation, context or rows.min."
        )
    return faults
