"""Finds the draft sources of a model, from its settings and its files."""

import logging

from inference_api.core.drafts import DraftSource
from inference_api.core.served_model import ServedModel
from inference_api.errors import StartupError
from inference_api.runner import ModelRunner
from inference_api.settings import ModelSettings
from inference_api.speculation.draft_model import ModelDrafts
from inference_api.speculation.medusa import MedusaDrafts
from inference_api.speculation.mtp import MtpDrafts
from inference_api.speculation.ngram import NgramDrafts
from inference_api.speculation.scheduler import DraftScheduler

logger = logging.getLogger(__name__)

_LACKING = {  # for each source, what a model without it lacks, and the remedy
    ModelDrafts.name: "draft model; name a small one of the same vocabulary in DRAFT_MODEL",
    MedusaDrafts.name: "Medusa heads; name their folder in MEDUSA_HEADS, train some with `hearth "
    "medusa`",
    MtpDrafts.name: "layer that guesses further tokens, or is not on the CPU in one process; get "
    "files with one",
}


def draft_sources(
    name: str, runner: ModelRunner, settings: ModelSettings, drafter: ModelRunner | None = None
) -> tuple[str, ...]:
    """Returns the names of a runner's draft sources, the fastest first. The runner need not be
    loaded. Raises StartupError if the source that the settings name is not available."""
    mode = settings.speculation
    if mode == "off":
        return ()
    has_states = runner.layout.state_pages > 0  # a recurrent state follows one branch: only chains
    if has_states and mode == "medusa":
        logger.info("%s has recurrent layers: n-grams draft instead of Medusa heads", name)
        return (NgramDrafts.name,)
    # An assistant's files (DRAFT_MODEL) give the runner a layer like the model's own one.
    is_assisted = runner.has_mtp and drafter is None and settings.used_draft_model is not None
    available = {
        NgramDrafts.name: mode in ("auto", "ngram"),
        MedusaDrafts.name: runner.has_medusa_heads and not has_states,
        MtpDrafts.name: runner.has_mtp and not is_assisted,
        ModelDrafts.name: drafter is not None or is_assisted,
    }
    if mode in _LACKING and not available[mode]:
        raise StartupError(
            f"SPECULATION={mode}, but {name} has no {_LACKING[mode]}, or set SPECULATION=auto."
        )
    return tuple(source for source, is_available in available.items() if is_available)


def drafting_of(
    served: ServedModel, runner: ModelRunner, settings: ModelSettings, drafter: ModelDrafts | None
) -> DraftScheduler | None:
    """Returns the draft scheduler of a loaded model; None if it has no draft sources."""
    sources: list[DraftSource] = []
    max_tokens = settings.speculation_tokens
    for source in served.draft_sources:
        if source == NgramDrafts.name:
            sources.append(NgramDrafts(max_tokens))
        elif source == MedusaDrafts.name:
            assert runner.medusa is not None
            sources.append(MedusaDrafts(runner.medusa, max_tokens))
        elif source == MtpDrafts.name or drafter is None:
            assert runner.mtp is not None
            sources.append(MtpDrafts(runner.mtp, max_tokens, runner.vocab_size, source))
        else:
            sources.append(drafter)
    if not sources:
        return None
    tries_all = settings.speculation != "auto"
    return DraftScheduler(
        sources,
        max_tokens,
        runner.max_rows,
        tries_all,
        costs=served.costs,
        may_branch=not runner.layout.state_pages,
    )
