"""Turns the parameters of a call into the request that the decode thread gets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inference_api.core.served_model import ServedModel
from inference_api.errors import ContextTooLong, InvalidRequest
from inference_api.request import (
    Caller,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SamplingParams,
)
from inference_api.settings.model import Speculation
from inference_api.text.constraints import bits_without
from inference_api.text.tokens import is_thinking

Prompt = Sequence[int]  # token ids
Requests = Sequence[tuple[Prompt, GenerationParams]]


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted request: its model, its caller, and its arrival on `time.monotonic`."""

    model: ServedModel
    caller: Caller
    came_s: float


def check_fits(prompt: Prompt, model: ServedModel) -> None:
    """Raises ContextTooLong, or InvalidRequest for a prompt without tokens."""
    if not prompt:
        raise InvalidRequest("The prompt has no tokens; give some text.")
    if len(prompt) >= model.max_seq_len:
        raise ContextTooLong(len(prompt), model.max_seq_len)


def request_of(
    admitted: Admitted,
    output: OutputQueue,
    prompt: Prompt,
    params: GenerationParams,
) -> GenerationRequest:
    """Returns the request for the decode thread. Raises InvalidRequest for a token or a draft
    source that the model does not have, and for a constraint that cannot be followed."""
    model, prompt_tokens = admitted.model, tuple(prompt)
    _check_speculation(params.speculation, model)
    _check_token_ids("stop_token_ids", params.stop_token_ids, model.vocab_size)
    _check_token_ids(
        "logit_bias", [token_id for token_id, _ in params.sampling.logit_bias], model.vocab_size
    )
    grammar = None
    if (constraint := params.constraint) is not None:
        if constraint.thinking == "first" and is_thinking(model.tokenizer, prompt_tokens):
            constraint = replace(constraint, thinking="begun")
        grammar = model.grammars.compiled(constraint)
    stop_token_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_token_ids |= model.tokenizer.stop_token_ids
    not_stopping = bits_without(stop_token_ids, model.vocab_size) if params.min_tokens else None
    return GenerationRequest(
        output,
        model.name,
        prompt_tokens,
        replace(params, sampling=_sampling(model, params), unsaid=frozenset()),
        stop_token_ids,
        not_stopping,
        admitted.came_s,
        grammar,
        admitted.caller,
    )


def _check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidRequest(
                f"{field}: {token_id} is no token id of this model; give 0 to {vocab_size - 1}.",
                field,
            )


def _sampling(model: ServedModel, params: GenerationParams) -> SamplingParams:
    """Returns the request's sampling parameters, completed by the model's defaults."""
    defaults = {
        name: value for name, value in model.sampling_defaults.items() if name in params.unsaid
    }
    return replace(params.sampling, **defaults) if defaults else params.sampling  # type: ignore[arg-type]


def _check_speculation(asked: Speculation, model: ServedModel) -> None:
    """Raises InvalidRequest if this model has no draft source of the name asked for."""
    served = ("auto", "off", *model.draft_sources)
    if asked not in served:
        needed = f"SPECULATION={asked}" + " and a DRAFT_MODEL" * (asked == "draft")
        raise InvalidRequest(
            f"speculation: is {asked!r}, which {model.name} is served without; give one of "
            f"{', '.join(map(repr, served))}, or start the server with {needed}.",
            "speculation",
        )
