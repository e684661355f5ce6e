"""The nouns that travel between threads: any may hold them, as all but `OutputQueue` are frozen.

A `GenerationRequest` goes forward from a request thread to the decode thread and brings the queue
in which `TokenEvent`s come back. Nothing here knows Flask, torch or text: prompts and events are
token ids.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Literal, NamedTuple, NewType, Protocol

from inference_api.errors import HearthError
from inference_api.settings.model import Speculation

SessionId = NewType("SessionId", str)
"""A label that the client may choose, for headers, logs and people. Nothing is looked up by it."""


Pooling = Literal["mean", "last"]
"""Which hidden states of a prompt's tokens make its embedding."""
Thinking = Literal["never", "first", "begun"]
"""Whether an answer may think `first`, before a constraint counts; `begun`: the prompt has begun
the thought already."""


class FinishReason(StrEnum):
    """Why a generation ended; the wire value is OpenAI's where OpenAI has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a generation, for those who watch, by the rule of the route that was asked; and
    the connection to watch for a hang-up."""

    request_id: str
    team_id: str | None = None
    route: str = ""
    connection: socket.socket | None = None
    trace_context: Mapping[str, str] = field(default_factory=dict)
    left_aside: tuple[str, ...] = ()  # fields of its body, as `X-Hearth-Ignored` has them


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of drawing a token. `is_greedy` requests ignore all but the penalties."""

    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = all tokens; 1 = greedy
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    num_logprobs: int | None = None  # likeliest tokens to report with each; None: not even its own

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


# The parameters for which a model may bring defaults of its own.
DEFAULTED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """Constraint of an answer: JSON of a schema, a match of a regular expression, one of several
    texts (a JSON list of strings), a grammar (Lark or GBNF), or calls of tools
    (`text.call_grammars`)."""

    field: str  # the request's field that holds it, for messages
    kind: Literal["json_schema", "regex", "choice", "grammar", "calls"]
    text: str
    thinking: Thinking = "never"
    is_dispensable: bool = False  # where it cannot be followed the answer goes without


class Constraint(Protocol):
    """Follows one answer. Decode thread only."""

    allowed: bytes
    """A bit per token id, lowest first: whether it may come next."""
    is_complete: bool
    """Nothing may follow what is there."""

    def accept(self, token_id: int) -> None:
        """Go on by an allowed token. Raises ConstraintFailed."""

    def allowed_after(self, token_ids: Sequence[int]) -> bytes | None:
        """`allowed` as it would be after these tokens; None where they are not allowed, or nothing
        may follow them."""


class Grammar(Protocol):
    """A constraint, compiled. Immutable; any thread."""

    def start(self) -> Constraint: ...


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """Parameters of a request besides its prompt."""

    max_tokens: int | None = None  # None: to the end of the context
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own
    min_tokens: int = 0  # before which neither a stop token nor a stop string ends the answer
    includes_stop: bool = False  # whether the stop string that ends the answer is shown
    session_id: str | None = None  # None: made for it
    num_prompt_logprobs: int | None = None  # as `SamplingParams.num_logprobs`, of the prompt
    priority: int = 0
    cache_salt: str = ""
    speculation: Speculation = "auto"
    constraint: ConstraintSpec | None = None
    pooling: Pooling | None = None  # the first event has the prompt's embedding
    kept_token_ids: frozenset[int] = frozenset()  # special tokens whose names are text
    sampling: SamplingParams = field(default_factory=SamplingParams)
    unsaid: frozenset[str] = frozenset()  # what of `DEFAULTED` is left to the model


class OutputQueue:
    """The events of one request, in order. Any thread puts; one thread reads."""

    def __init__(self, session_id: SessionId, model: str) -> None:
        self.session_id = session_id
        self.model = model
        self.is_closed = False  # nobody reads any more: the request need not run
        self._events: SimpleQueue[TokenEvent] = SimpleQueue()

    def put(self, event: "TokenEvent") -> None:
        self._events.put(event)

    @property
    def has_events(self) -> bool:
        return not self._events.empty()

    def get(self, timeout_s: float) -> "TokenEvent | None":
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequest:
    """One prompt to continue. The prompt is never empty and shorter than the model's context.

    A request equals itself only, so that it can be the key of what belongs to it, whatever the
    client calls it.
    """

    output: OutputQueue
    model: str  # the model's own name, no alias
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    not_stopping: bytes | None = None  # with `min_tokens`: a bit per token id that does not stop
    num_prompt_logprobs: int | None = None  # as `sampling.num_logprobs`, of the prompt's tokens
    priority: int = 0  # lower ones leave the input queue earlier
    speculation: Speculation = "auto"  # `off`, `auto`, or one of the model's sources
    came_s: float = 0.0  # on the monotonic clock
    grammar: Grammar | None = None
    pooling: Pooling | None = None
    caller: Caller | None = None

    cache_salt: str = ""
    """Only prompts with the same one share what is remembered of them."""

    @property
    def needs_whole_prompt(self) -> bool:
        """Nothing of the prompt may come from a cache: something is made of each of its tokens."""
        return self.num_prompt_logprobs is not None or self.pooling == "mean"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of a token by the model's own distribution, natural, before bias,
    penalties and temperature."""

    logprob: float
    rank: int  # among all tokens, the likeliest 1
    top: tuple[tuple[int, float], ...]  # the likeliest tokens in its place, best first


class ScoredToken(NamedTuple):
    """A token and how likely it was; None for the first of a prompt, which follows nothing."""

    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Switch:
    """What a request paid because its model was not in memory when it came, in seconds.

    It waited `wait_s` for its model's turn to be loaded, `evict_s` for room and `load_s` for the
    load: the whole time from its arrival until the model was ready. `is_initiator` where the load
    was begun for it; `from_name` is the model that had served last, None: none had.
    """

    wait_s: float
    evict_s: float
    load_s: float
    is_initiator: bool
    from_name: str | None

    @property
    def switching_time_s(self) -> float:
        return self.wait_s + self.evict_s + self.load_s


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one step made for a session."""

    token_ids: tuple[int, ...] = ()
    """Without stop tokens."""
    finish_reason: FinishReason | None = None
    """Set on a session's last event."""
    error: HearthError | None = None
    """Set exactly when the finish reason is `ERROR`."""
    admitted_at_s: float | None = None
    """When the request left the queue for a row, by the monotonic clock; None before."""
    reused_tokens: int = 0
    """Tokens of the prompt that needed no prefill because a row's cache held them."""
    batch_size: int = 0
    """Rows that decoded together in the step."""
    drafted_tokens: int = 0
    """Tokens tried after the certain one; the depth of a tree."""
    accepted_tokens: int = 0
    """How many of the drafted tokens were kept."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One entry a token, where the request asks for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """In the first event only: one entry a token of the prompt, without the first."""
    switch: Switch | None = None
    """Set where the model had to be loaded for the request."""
    embedding: bytes | None = None
    """In the first event only, where `pooling` asks for it: float32, little-endian."""
