"""Answers of a chat as events, whatever API asks for them.

A route makes a `ToolUse` of its body, asks with `chat_params`, and reads the generation it gets by
an `answer_reader`: thoughts, text and calls come out of `events_of`, to be sent in its own form.
Where an answer is one generation, a `ChatRequest` and a `ChatAnswer` are the two ends of this.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from inference_api.errors import AnswerTooLong, InvalidRequest
from inference_api.generation.streaming import TextGeneration
from inference_api.request import FinishReason, GenerationParams
from inference_api.text.call_grammars import calls_constraint
from inference_api.text.chat_prompts import Extras
from inference_api.text.tokens import Tokenizer, is_thinking
from inference_api.tools.answers import AnswerReader
from inference_api.tools.dialects import MISTRAL, Dialect
from inference_api.tools.events import Event, ThoughtDelta, ToolUse
from inference_api.tools.formats import text_only
from inference_api.tools.history import Message


class Conversation(NamedTuple):
    """What a chat template is given."""

    turns: list[Message]
    extras: Extras


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a body asks of a model, whatever API it is of. The fields are the body's, for messages:
    `limit_field` asks for tokens that have to fit; without one they are cut at the context's end.
    """

    model: str
    conversation: Conversation
    use: ToolUse
    params: GenerationParams
    prompt_field: str
    limit_field: str | None = None
    effort_field: str | None = None  # where the template has to read how much to think

    @property
    def user_texts(self) -> list[str]:
        return [turn["content"] for turn in self.conversation.turns if turn["role"] == "user"]

    def check_room(self, prompt_tokens: int, max_seq_len: int) -> None:
        """Raises AnswerTooLong where the requested tokens do not fit after the prompt."""
        asked = self.params.max_tokens or 0
        if self.limit_field and prompt_tokens < max_seq_len < prompt_tokens + asked:
            raise AnswerTooLong(prompt_tokens, asked, max_seq_len, self.limit_field)


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


def check_effort(tokenizer: Tokenizer, field: str) -> None:
    """Raises InvalidRequest where the model's template does not read how much to think."""
    if not tokenizer.dialect.reads_effort:
        raise InvalidRequest(
            f"{field}: this model's chat template has no place for it; leave it out or give none.",
            field,
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


class ChatAnswer:
    """The answer of one generation to a chat, as it comes. Used by one thread."""

    def __init__(self, generation: TextGeneration, reader: AnswerReader) -> None:
        self.generation = generation
        self.thought_tokens = 0  # so far: of pieces whose text is not known to go on otherwise
        self._reader = reader

    @property
    def has_calls(self) -> bool:
        return self._reader.num_calls > 0

    @property
    def is_cut(self) -> bool:
        """Whether it has met the bound of its tokens, or of the context."""
        return self.generation.finish_reason == FinishReason.LENGTH

    def events(self) -> Iterator[Event]:
        """Raises HearthError."""
        num_tokens = 0
        is_thought = False
        for events in events_of(self.generation.pieces(), self._reader):
            for event in events:
                is_thought = isinstance(event, ThoughtDelta)
            if is_thought:
                self.thought_tokens += self.generation.completion_tokens - num_tokens
            num_tokens = self.generation.completion_tokens
            yield from events


def _kept(dialect: Dialect, use: ToolUse) -> Iterator[str]:
    if dialect.thought is not None:
        yield from (dialect.thought.begin, dialect.thought.end)
    if use.callable_tools or dialect.name == "harmony":
        yield from dialect.markers


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _short_id() -> str:
    return secrets.token_hex(5)[:9]
