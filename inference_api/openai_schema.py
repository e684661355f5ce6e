"""The bodies of the `/v1` routes, as pydantic models: OpenAI's fields, and vLLM's beside them.

A field we know and do not serve is refused by name, one nobody knows too; only fields that cannot
change an answer are ignored. `parse` is the way in.
"""

import secrets
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inference_api.errors import InvalidRequest
from inference_api.request import GenerationParams, SamplingParams
from inference_api.schema import parse_object

MAX_CHOICES = 32
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
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (),
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


class GenerationBody(Body):
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
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def params(self, choice: int, vocab_size: int, max_tokens: int | None) -> GenerationParams:
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
        )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return GenerationParams(max_tokens, stop, bool(self.ignore_eos), None, sampling)

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


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
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
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return InvalidRequest(f"Unrecognized request argument supplied: {path}", path)
    return InvalidRequest(f"{path}: {detail['msg']}", path.partition(".")[0])


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
