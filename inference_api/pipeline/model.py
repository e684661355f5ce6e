"""Loads a model whose layers are split over several ranks."""

from dataclasses import replace
from functools import partial

from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.loaded_model import LoadedModel
from inference_api.loading.options import EngineOptions
from inference_api.model_loading import describe_model, loaded, make_drafter
from inference_api.pipeline.ranks import load_rank_settings, resolved
from inference_api.settings import Settings
from inference_api.text.prompt_encoder import ByteBudget


def bring_up(backend: DecodeBackend) -> None:
    """Serve the model of the settings. Raises the errors of `load_split_model`."""
    backend.take([load_split_model(backend.settings)])


def load_split_model(settings: Settings) -> LoadedModel:
    """Wait for the other ranks, then load the model. Raises StartupError or RingBroken."""
    from inference_api.engine.devices import make_runner
    from inference_api.loading.checkpoint import load_config, locate
    from inference_api.pipeline.rank_runners import kernels_of_ranks, part_runners
    from inference_api.pipeline.ring import Ring
    from inference_api.pipeline.runner import PipelineRunner

    assert settings.split is not None
    ranks, model = load_rank_settings(), settings.default_model
    folder = locate(model.model)
    split = resolved(settings.split, load_config(folder).num_layers, ranks.world_size)
    kernels_of = kernels_of_ranks(ranks.local_world_size)
    options = replace(EngineOptions.from_settings(model), card=ranks.local_rank)
    make_part = part_runners(folder, options, ranks.local_world_size, kernels_of)
    join = partial(Ring.join, ranks, timeout_s=settings.split_timeout_s)
    runner = PipelineRunner(make_part, split, join)
    runner.load()  # may reduce `max_seq_len` if a rank has too little memory
    make = partial(make_runner, kernels_of=kernels_of)
    drafter = make_drafter(model, folder, options, runner.max_seq_len, make)
    served = describe_model(model, folder, runner, drafter, ByteBudget())
    if drafter is not None:
        drafter.load()
    return loaded(served, runner, settings, drafter)
