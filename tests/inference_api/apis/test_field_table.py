"""Every field of every body is of one kind, and the documents say of which."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from anthropic.types.beta import message_create_params
from openai.types import EmbeddingCreateParams, chat, completion_create_params, responses
from pydantic import ValidationError
from typing_extensions import get_type_hints

from inference_api.apis.anthropic.body import MessagesBody
from inference_api.apis.embeddings import EmbeddingsBody
from inference_api.apis.field_table import BODIES, field_tables
from inference_api.apis.openai.bodies import ChatBody, CompletionBody
from inference_api.apis.responses.body import ResponsesBody
from inference_api.web.fields import Body
from inference_api.web.left_aside import LeftAside, places
from lab.kit.servers import ROOT


def kinds() -> Iterator[tuple[str, type[Body]]]:
    for route, body in BODIES.items():
        for kind, place in places(body).items():
            if issubclass(kind, Body):
                yield f"{route} {place} {kind.__name__}", kind


KINDS = dict(kinds())
# What clients of llama.cpp, text-generation-webui, KoboldCpp, Ollama, SGLang, TGI, Groq,
# OpenRouter, Mistral and others send.
OF_OTHER_SERVERS = """
    adapter_id auto_max_new_tokens backend_sampling banned_tokens bot_name cache_prompt
    character compound_custom context continue_ custom_params custom_token_bans do_sample
    dry_base dynatemp_range ebnf enable_search encoder_repetition_penalty format grammar id_slot
    incremental_output input_ids instruction_template keep_alive logit_bias_exp lora_path
    max_context_length memory mirostat mirostat_tau mode models n_keep n_predict n_probs name1
    name2 no_repeat_ngram_size num_ctx options parse_tool_calls penalty_alpha plugins
    prompt_mode provider random_seed raw reasoning_budget reasoning_format regex rep_pen
    rep_pen_range repeat_last_n repetition_decay repetition_penalty_range return_progress rid
    safe_prompt sampler_order samplers search_options separate_reasoning stop_regex
    stream_reasoning temperature_last tfs_z think thinking_budget timings_per_token top_n_sigma
    top_n_tokens transforms typ_p typical_p usage xtc_threshold
"""
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (ChatBody, chat.completion_create_params.CompletionCreateParamsNonStreaming),
        (CompletionBody, completion_create_params.CompletionCreateParamsNonStreaming),
        (ResponsesBody, responses.response_create_params.ResponseCreateParamsNonStreaming),
        (EmbeddingsBody, EmbeddingCreateParams),
        (MessagesBody, message_create_params.MessageCreateParamsNonStreaming),
    ],
)
def test_every_parameter_of_the_sdks_is_known(body: type[Body], parameters: type) -> None:
    """So that `UNKNOWN_FIELDS=refuse` refuses none of them for being unknown."""
    honoured = {field.alias or name for name, field in body.model_fields.items()}
    known = honoured | body.advisory | body.unserved.keys()
    refused_in_words_of_its_own = {"thread"}
    assert get_type_hints(parameters).keys() - known <= refused_in_words_of_its_own


@each_kind
def test_a_field_is_of_one_kind(kind: type[Body]) -> None:
    fields = [field.alias or name for name, field in kind.model_fields.items()]
    named = [*fields, *kind.advisory, *kind.of_answers, *kind.unserved, *kind.also_called]
    assert len(set(named)) == len(named)


@each_kind
def test_no_field_that_is_known_is_taken_for_another(kind: type[Body]) -> None:
    """So that whoever adds one sees what it looks like: only what is not known is compared."""
    for name in (*kind.advisory, *kind.of_answers):
        aside = LeftAside(kind)
        with suppress(ValidationError):  # of what is missing beside it
            kind.model_validate({name: "x"}, context=aside)
        assert list(aside.paths) == ([name] if name in kind.advisory else [])


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, EmbeddingsBody, ResponsesBody])
def test_no_field_of_another_server_is_taken_for_a_misspelt_one(body: type[Body]) -> None:
    honoured = {field.alias or name for name, field in body.model_fields.items()}
    for name in {*OF_OTHER_SERVERS.split()} - honoured - body.advisory - body.unserved.keys():
        assert LeftAside(body).add_unknown(body, name, honoured) is None


def test_the_document_has_the_tables() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    _, _, begun = page.partition("<!-- fields: python -m inference_api.apis.field_table -->\n\n")
    assert begun.partition("\n<!-- end of fields -->")[0] == "\n".join(field_tables())
