"""The one path of a chat, whatever API it came by: a body's reader makes a `Chat` of it, and a
writer sends each `ChatAnswer` in that API's form.

`routes.chats` joins the two: it has the turns encoded, the generations begun and their texts read
as events, which are thoughts, text and calls.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inference_api.core.generations import TextGeneration
from inference_api.errors import InvalidRequest
from inference_api.request import FinishReason, GenerationParams
from inference_api.text.call_grammars import calls_constraint
from inference_api.text.chat_prompts import Ending, Extras
from inference_api.text.tokens import Tokenizer, is_thinking
from inference_api.tools.answers import AnswerReader
from inference_api.tools.dialects import MISTRAL, Dialect
from inference_api.tools.events import Event, ThoughtDelta, ToolUse
from inference_api.tools.formats import text_only
from inference_api.tools.history import Message


@dataclass(frozen=True, slots=True)
class Chat:
    """What a body asks of a model. `params` has an entry for each answer that is wanted.

    `options` are what the template is told beside the turns, by the field of the body that says
    so: a template reads some and has no place for others.
    """

    model: str | None  # None: the default model
    turns: Sequence[Message]
    use: ToolUse
    params: Sequence[GenerationParams]
    prompt_field: str = "messages"  # the body's, for messages
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ending: Ending = "answer"

    def __post_init__(self) -> None:
        """Raises InvalidRequest where what was taken of the body leaves no turn."""
        if not self.turns:
            raise InvalidRequest(
                f"{self.prompt_field}: has nothing to answer; give a text.", self.prompt_field
            )

    @property
    def user_texts(self) -> list[str]:
        return [turn["content"] for turn in self.turns if turn["role"] == "user"]

    @property
    def extras(self) -> Extras:
        options = {name: value for said in self.options.values() for name, value in said.items()}
        return Extras([tool.as_json() for tool in self.use.tools], options, self.ending)

    def unread_by(self, dialect: Dialect) -> dict[str, str]:
        """Returns the fields for which the model's template has no place, as in `left_aside`."""
        unread = {
            field: field.partition(".")[0]  # behind it a client's own name may stand
            for field, said in self.options.items()
            if not dialect.words & said.keys()
        }
        for turn in self.turns:
            if "name" in turn and turn["role"] not in {*dialect.named_roles, "tool"}:
                unread[f"{self.prompt_field}[].name"] = "name"
        return unread


def chat_params(params: GenerationParams, use: ToolUse, tokenizer: Tokenizer) -> GenerationParams:
    """Returns the parameters with the dialect's marks to keep, the tokens that stop, and a
    constraint that starts after the thought.

    A constraint that `params` has already holds only for an answer without calls.
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
        frozenset(n for n, tool in use.callable_tools.items() if tool.input_rule is not None),
    )


def plain_reader() -> AnswerReader:
    """Returns what reads an answer that is text only."""
    return AnswerReader(text_only, {}, _new_id)


class ChatAnswer:
    """The answer of one generation, as it comes. Used by one thread."""

    def __init__(self, generation: TextGeneration, reader: AnswerReader) -> None:
        self.generation = generation
        self.thought_tokens = 0  # tokens of thought so far
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
        for _, events in self.pieces():
            yield from events

    def pieces(self) -> Iterator[tuple[str, list[Event]]]:
        """Yields each piece of the text with what became certain by it, perhaps nothing; an empty
        piece is the end. Raises HearthError."""
        num_tokens = 0
        is_thought = False
        for piece, events in self._read():
            for event in events:
                is_thought = isinstance(event, ThoughtDelta)
            if is_thought:
                self.thought_tokens += self.generation.completion_tokens - num_tokens
            num_tokens = self.generation.completion_tokens
            yield piece, events

    def _read(self) -> Iterator[tuple[str, list[Event]]]:
        for piece in self.generation.pieces():
            yield piece, self._reader.push(piece)
        yield "", self._reader.finish()


def _kept(dialect: Dialect, use: ToolUse) -> Iterator[str]:
    if dialect.thought is not None:
        yield from (dialect.thought.begin, dialect.thought.end)
    if use.callable_tools or dialect.name == "harmony":
        yield from dialect.markers


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _short_id() -> str:
    return secrets.token_hex(5)[:9]
