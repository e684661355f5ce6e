"""The bodies of the `/v1` routes, as pydantic models: OpenAI's fields, and vLLM's beside them.

A field we know and do not serve is refused by name, one nobody knows too; only fields that cannot
change an answer are ignored. `parse` is the way in.
"""

import json
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from inference_api.errors import InvalidRequest
from inference_api.request import ConstraintSpec, GenerationParams, SamplingParams
from inference_api.schema import parse_object

MAX_CHOICES = 32
MAX_LOGPROBS = 20
MAX_PRIORITY = 1000
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# What is not served, and the values that ask for nothing.
UNSERVED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}

TokenId = Annotated[int, Field(ge=0)]
StopString = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that is tokens already."""

    token_ids: list[int]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _add_known_fields(schema: dict[str, Any]) -> None:
    """To a body's JSON schema: what `parse` takes besides the model's own fields."""
    fields = schema["properties"]
    for name in sorted(IGNORED):
        fields.setdefault(name, {"description": "Accepted and ignored."})
    for name, neutral in UNSERVED.items():
        fields.setdefault(name, {"enum": [*neutral, None], "description": "Not served."})


class JsonSchema(Body):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """`json_schema` comes with a schema; `json_object` is any object."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError(
                "response_format", "json_schema comes with the type of that name and no other"
            )
        return self

    def as_constraint(self) -> ConstraintSpec | None:
        if self.type == "text":
            return None
        schema = {"type": "object"} if self.json_schema is None else self.json_schema.schema_
        return ConstraintSpec("response_format", "json_schema", json.dumps(schema))


class StructuredOutputs(Body):
    """One of the three; vLLM's field."""

    model_config = ConfigDict(protected_namespaces=())

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "StructuredOutputs":
        if sum(each is not None for each in (self.json_, self.regex, self.choice)) != 1:
            raise PydanticCustomError("structured_outputs", "give one of json, regex and choice")
        return self

    def as_constraint(self) -> ConstraintSpec:
        field: Final = "structured_outputs"
        if self.regex is not None:
            return ConstraintSpec(field, "regex", self.regex)
        if self.choice is not None:
            return ConstraintSpec(field, "choice", json.dumps(self.choice))
        return ConstraintSpec(field, "json_schema", json.dumps(self.json_))


class RequestBody(Body):
    model_config = ConfigDict(json_schema_extra=_add_known_fields)


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class TextPart(Body):
    type: Literal["text"]
    text: str


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def as_turn(self) -> dict[str, str]:
        """The message as chat templates take it: one text, and no name for a system role."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content}


class GenerationBody(RequestBody):
    """What completions and chat have in common."""

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=8)] | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report with each; None: no log probabilities."""
        return None

    @property
    def wants_echo(self) -> bool:
        """Whether the answer begins with the prompt."""
        return False

    @property
    def token_limit(self) -> int | None:
        """Tokens to generate; None: to the end of the context."""
        return self.max_tokens

    def params(self, choice: int, vocab_size: int) -> GenerationParams:
        """For one of `n` choices; each draws from a seed of its own.

        Raises InvalidRequest for a token id that the model does not have.
        """
        seed = secrets.randbits(63) if self.seed is None else self.seed
        sampling = SamplingParams(
            temperature=_or(self.temperature, 1.0),
            top_k=max(0, self.top_k or 0),
            top_p=_or(self.top_p, 1.0),
            min_p=self.min_p or 0.0,
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self._biases(vocab_size),
            seed=(seed + choice) % 2**64,
            num_logprobs=self.num_logprobs,
        )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return GenerationParams(
            max_tokens=self.token_limit,
            stop_strings=stop,
            ignore_eos=bool(self.ignore_eos),
            wants_prompt_logprobs=self.wants_echo and self.num_logprobs is not None,
            priority=self.priority or 0,
            constraint=self._constraint(),
            sampling=sampling,
        )

    def _constraint(self) -> ConstraintSpec | None:
        asked = self.response_format.as_constraint() if self.response_format else None
        if self.structured_outputs is None:
            return asked
        if asked is not None:
            raise InvalidRequest(
                "Give either response_format or structured_outputs.", "structured_outputs"
            )
        return self.structured_outputs.as_constraint()

    @model_validator(mode="after")
    def _constraint_needs_its_end(self) -> "GenerationBody":
        if self.ignore_eos and self._constraint() is not None:
            raise PydanticCustomError(
                "ignore_eos", "a constrained answer has an end; leave out ignore_eos"
            )
        return self

    def _biases(self, vocab_size: int) -> tuple[tuple[int, float], ...]:
        biases = []
        for token_id, bias in (self.logit_bias or {}).items():
            if not (token_id.isascii() and token_id.isdigit() and int(token_id) < vocab_size):
                raise InvalidRequest(
                    f"logit_bias: {token_id[:20]!r} is no token id of this model, 0 to "
                    f"{vocab_size - 1}.",
                    "logit_bias",
                )
            biases.append((int(token_id), bias))
        return tuple(biases)


class CompletionBody(GenerationBody):
    prompt: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=32)]
        | Annotated[
            list[Annotated[list[TokenId], Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_CHOICES),
        ]
    )

    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def wants_echo(self) -> bool:
        return bool(self.echo)

    @property
    def token_limit(self) -> int | None:
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @model_validator(mode="after")
    def _no_tokens_only_with_echo(self) -> "CompletionBody":
        if self.max_tokens == 0 and not self.echo:
            raise PydanticCustomError("max_tokens", "0 needs echo: true; ask for 1 or more")
        return self

    def prompts(self) -> list[str | TokenIds]:
        """One or several, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if all(isinstance(item, int) for item in self.prompt):
            return [TokenIds([item for item in self.prompt if isinstance(item, int)])]
        return [
            item if isinstance(item, str) else TokenIds(item)
            for item in self.prompt
            if not isinstance(item, int)
        ]


class ChatBody(GenerationBody):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @model_validator(mode="after")
    def _top_only_with_logprobs(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs needs logprobs: true")
        return self


class TokenizeBody(RequestBody):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = True


class DetokenizeBody(RequestBody):
    model: str | None = None
    tokens: list[TokenId]


B = TypeVar("B", bound=Body)


def parse(kind: type[B], body: bytes) -> B:
    """Raises InvalidRequest naming the field at fault."""
    given = {name: v for name, v in parse_object(body).items() if v is not None}
    for name, neutral in UNSERVED.items():
        if name in given and given.pop(name) not in neutral:
            raise InvalidRequest(f"{name} is not supported by this server; leave it out.", name)
    for name in IGNORED:
        given.pop(name, None)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _fault(error) from None


def _fault(error: ValidationError) -> InvalidRequest:
    detail = error.errors(include_url=False, include_context=False)[0]
    # A fault of the body as a whole is named by its type.
    path = ".".join(str(part) for part in detail["loc"]) or detail["type"]
    if detail["type"] == "extra_forbidden":
        return InvalidRequest(f"Unrecognized request argument supplied: {path}", path)
    return InvalidRequest(f"{path}: {detail['msg']}", path.partition(".")[0])


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
