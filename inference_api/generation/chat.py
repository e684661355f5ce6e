"""Answers of a chat as events, whatever API asks for them.

A route makes a `ToolUse` of its body, asks with `chat_params`, and reads the generation it gets by
an `answer_reader`: thoughts, text and calls come out of `events_of`, to be sent in its own form.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace

from inference_api.request import GenerationParams
from inference_api.text.call_grammars import calls_constraint
from inference_api.text.tokens import Tokenizer, is_thinking
from inference_api.tools.answers import AnswerReader
from inference_api.tools.dialects import MISTRAL, Dialect
from inference_api.tools.events import Event, ToolUse
from inference_api.tools.formats import text_only


def chat_params(params: GenerationParams, use: ToolUse, tokenizer: Tokenizer) -> GenerationParams:
    """Returns the parameters with what the model's way to call and to think asks for: marks that
    are kept in the text, tokens that end it, and a constraint that counts behind the thought.

    A constraint that is there already holds the text of an answer that calls nothing.
    """
    dialect = tokenizer.dialect
    constraint = calls_constraint(use, dialect, params.constraint)
    if constraint is None:
        constraint = params.constraint
    elif constraint.is_dispensable and (params.ignore_eos or params.min_tokens):
        constraint = None  # which would let the answer end
    if constraint is not None and dialect.thought is not None:
        constraint = replace(constraint, thinking="first")
    stops = () if params.ignore_eos else tokenizer.special_ids(dialect.stops)
    return replace(
        params,
        constraint=constraint,
        kept_token_ids=tokenizer.special_ids(_kept(dialect, use)),
        stop_token_ids=(*params.stop_token_ids, *stops),
    )


def answer_reader(tokenizer: Tokenizer, use: ToolUse, prompt_tokens: Iterable[int]) -> AnswerReader:
    """Returns what reads the answer to a prompt."""
    dialect = tokenizer.dialect
    schemas = {name: tool.parameters for name, tool in use.callable_tools.items()}
    reads_marks = bool(schemas) or dialect.name == "harmony"
    return AnswerReader(
        dialect.read if reads_marks else text_only,
        schemas,
        _short_id if dialect.read is MISTRAL.read else _new_id,
        dialect.thought,
        is_thinking(tokenizer, tuple(prompt_tokens)),
    )


def plain_reader() -> AnswerReader:
    """Returns what reads an answer that is text only."""
    return AnswerReader(text_only, {}, _new_id)


def events_of(pieces: Iterable[str], reader: AnswerReader) -> Iterator[list[Event]]:
    """Yields what became certain with each piece, perhaps nothing, and with the end."""
    for piece in pieces:
        yield reader.push(piece)
    yield reader.finish()


def _kept(dialect: Dialect, use: ToolUse) -> Iterator[str]:
    if dialect.thought is not None:
        yield from (dialect.thought.begin, dialect.thought.end)
    if use.callable_tools or dialect.name == "harmony":
        yield from dialect.markers


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _short_id() -> str:
    return secrets.token_hex(5)[:9]
