"""Chats of any API: `Chat` is the question, which the API's reader makes from a body, and
`ChatAnswer` is an answer, which the API's writer sends.

`apis.answering` joins the two. It encodes the messages, begins the generations, and reads their
text as events: thoughts, text and calls.
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
from inference_api.tools.calls import Calls
from inference_api.tools.dialects import MISTRAL, Dialect
from inference_api.tools.events import Event, ThoughtDelta, ToolUse
from inference_api.tools.formats import text_only
from inference_api.tools.history import Message, ids_behind


@dataclass(frozen=True, slots=True)
class Chat:
    """A body's question to a model. `params` has one entry for each answer.

    `options` are values for the chat template beside the messages, keyed by the body's field. A
    template may ignore some of them: see `unread_by`.
    """

    model: str | None  # None: the default model
    turns: Sequence[Message]
    use: ToolUse
    params: Sequence[GenerationParams]
    prompt_field: str = "messages"  # the field of the body that error messages name
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ending: Ending = "answer"

    def __post_init__(self) -> None:
        """Raises InvalidRequest if no message is left."""
        if not self.turns:
            raise InvalidRequest(
                f"{self.prompt_field}: has nothing to answer; give a text.", self.prompt_field
            )

    @property
    def user_texts(self) -> list[str]:
        return [turn["content"] for turn in self.turns if turn["role"] == "user"]

    @property
    def extras(self) -> Extras:
        options = {name: value for each in self.options.values() for name, value in each.items()}
        return Extras([tool.as_json() for tool in self.use.tools], options, self.ending)

    def unread_by(self, dialect: Dialect) -> dict[str, str]:
        """Returns the fields that the model's template ignores, as in `LeftAside.paths`."""
        unread = {
            field: field.partition(".")[0]  # a name of the client's own may follow the point
            for field, values in self.options.items()
            if not dialect.words & values.keys()
        }
        for turn in self.turns:
            if "name" in turn and turn["role"] not in {*dialect.named_roles, "tool"}:
                unread[f"{self.prompt_field}[].name"] = "name"
        return unread


def chat_params(params: GenerationParams, use: ToolUse, tokenizer: Tokenizer) -> GenerationParams:
    """Returns the parameters completed for a dialect: marks to keep in the text, tokens that stop,
    and a constraint that starts after the thought.

    A constraint in `params` applies only to an answer without calls.
    """
    dialect = tokenizer.dialect
    constraint = calls_constraint(use, dialect, params.constraint)
    if constraint is None:
        constraint = params.constraint
    elif constraint.is_dispensable and (params.ignore_eos or params.min_tokens):
        constraint = None  # it would let the answer end without a call
    if constraint is not None and dialect.thought is not None:
        constraint = replace(constraint, thinking="first")
    stops = () if params.ignore_eos else tokenizer.special_ids(dialect.stops)
    return replace(
        params,
        constraint=constraint,
        kept_token_ids=tokenizer.special_ids(_kept_names(dialect, use)),
        stop_token_ids=(*params.stop_token_ids, *stops),
    )


def answer_reader(
    tokenizer: Tokenizer, use: ToolUse, prompt_tokens: Iterable[int], turns: Sequence[Message] = ()
) -> AnswerReader:
    """Returns the reader of the answer to a prompt, which has these messages."""
    dialect = tokenizer.dialect
    new_id = ids_behind(turns) if dialect.name == "kimi" else _new_id
    schemas = {name: tool.parameters for name, tool in use.callable_tools.items()}
    plain = (n for n, tool in use.callable_tools.items() if tool.input_rule is not None)
    calls = Calls(schemas, _short_id if dialect.read is MISTRAL.read else new_id, frozenset(plain))
    reads_marks = bool(schemas) or dialect.name == "harmony"
    return AnswerReader(
        dialect.read if reads_marks else text_only,
        calls,
        dialect.thought,
        is_thinking(tokenizer, tuple(prompt_tokens)),
    )


def plain_reader() -> AnswerReader:
    """Returns the reader of an answer that is plain text."""
    return AnswerReader(text_only, Calls({}, _new_id))


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
        """Whether the answer ended at its token limit, or at the end of the context."""
        return self.generation.finish_reason == FinishReason.LENGTH

    def events(self) -> Iterator[Event]:
        """Yields the answer's events. Raises HearthError."""
        for _, events in self.pieces():
            yield from events

    def pieces(self) -> Iterator[tuple[str, list[Event]]]:
        """Yields each piece of text with the events that it completes, perhaps none. An empty piece
        is the end. Raises HearthError."""
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


def _kept_names(dialect: Dialect, use: ToolUse) -> Iterator[str]:
    if dialect.thought is not None:
        yield from (dialect.thought.begin, dialect.thought.end)
    if use.callable_tools or dialect.name == "harmony":
        yield from dialect.markers


def _new_id(_: str) -> str:
    return f"call_{secrets.token_hex(12)}"


def _short_id(_: str) -> str:
    return secrets.token_hex(5)[:9]
