"""The one model of a server that is over several ranks. Imports torch when it is called."""

from functools import partial

from inference_api.engine.options import EngineOptions
from inference_api.engine.pipeline.settings import load_rank_settings
from inference_api.engine.pipeline.splits import resolved
from inference_api.scheduling.loaded_model import LoadedModel, draft_sources
from inference_api.scheduling.model_loading import make_drafter
from inference_api.scheduling.served_model import ServedModel
from inference_api.settings import Settings
from inference_api.text.prompt_encoder import MAX_BYTES_AT_ONCE, WAIT_S, ByteBudget
from inference_api.text.tokens import load_tokenizer


def load_split_model(settings: Settings) -> LoadedModel:
    """Waits for the other ranks. Raises StartupError, and RingBroken where they do not come."""
    from inference_api.engine.loading.checkpoint import load_config, locate
    from inference_api.engine.pipeline.parts import kernels_of_ranks, part_runners
    from inference_api.engine.pipeline.pipeline_runner import PipelineRunner
    from inference_api.engine.pipeline.ring import Ring

    assert settings.split is not None
    ranks, model = load_rank_settings(), settings.default_model
    folder = locate(model.model)
    split = resolved(settings.split, load_config(folder).num_layers, ranks.world_size)
    kernels_of = kernels_of_ranks(ranks.local_world_size)
    options = EngineOptions.from_settings(model)
    make_runner = part_runners(folder, options, ranks.local_world_size, kernels_of)
    join = partial(Ring.join, "env://", timeout_s=settings.split_timeout_s)
    runner = PipelineRunner(make_runner, split, join)
    tokenizer = load_tokenizer(folder, runner.eos_token_ids)
    drafter = None
    if model.used_draft_model is not None:
        drafter = make_drafter(model, folder, runner.max_seq_len, kernels_of)
    sources = draft_sources(model.name, runner, model, drafter)
    max_guesses = model.speculation_tokens if sources else 0
    budget = ByteBudget(MAX_BYTES_AT_ONCE, WAIT_S)
    served = ServedModel.of(model.name, runner, tokenizer, sources, budget, max_guesses)
    runner.load()
    if drafter is not None:
        drafter.load()
    return LoadedModel.serving(served, runner, settings, drafter)
