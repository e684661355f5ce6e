"""The values that travel between threads. All but `OutputQueue` are frozen.

A `GenerationRequest` goes from a request thread to the decode thread and carries the queue in which
`TokenEvent`s come back. Nothing here uses Flask, torch or text: prompts and events are token ids.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Literal, NamedTuple, NewType, Protocol

from inference_api.errors import HearthError
from inference_api.settings.model import Speculation

SessionId = NewType("SessionId", str)
"""A label for headers, logs and people. Clients may choose it, so it is not used as a key."""


Pooling = Literal["mean", "last"]
"""How the hidden states of a prompt's tokens make its embedding."""
Thinking = Literal["never", "first", "begun"]
"""Whether an answer may begin with a thought, to which its constraint does not apply. `begun` means
that the prompt has begun the thought."""


class FinishReason(StrEnum):
    """Why a generation ended, with OpenAI's values where OpenAI has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a generation: labels for metrics, logs and traces, and the connection to watch
    for a hang-up. `route` is the URL rule of the route."""

    request_id: str
    team_id: str | None = None
    route: str = ""
    connection: socket.socket | None = None
    trace_context: Mapping[str, str] = field(default_factory=dict)
    left_aside: tuple[str, ...] = ()  # ignored fields of the body, as in `X-Hearth-Ignored`


@dataclass(frozen=True)  # without slots, because cached properties need a __dict__
class SamplingParams:
    """How tokens are drawn. If `is_greedy`, only the penalties and biases count."""

    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = all tokens; 1 = greedy
    top_p: float = 1.0  # 0 = greedy
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    num_logprobs: int | None = None  # likeliest tokens to report per token; None: no logprobs

    @cached_property
    def is_greedy(self) -> bool:
        # A colder temperature might be 0 in a kernel's float32.
        return self.temperature < 1e-30 or self.top_k == 1 or self.top_p == 0.0

    @cached_property
    def changes_logits(self) -> bool:
        """Whether penalties or biases change the logits."""
        is_added = self.logit_bias or self.presence_penalty or self.frequency_penalty
        return bool(is_added) or self.repetition_penalty != 1.0


# Parameters for which a model's files may give defaults.
DEFAULTED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint on an answer. `text` is a JSON schema, a regular expression, a JSON list of
    strings to choose from, a grammar (Lark or GBNF), or tool calls (`text.call_grammars`)."""

    field: str  # name of the request's field that holds it, for error messages
    kind: Literal["json_schema", "regex", "choice", "grammar", "calls"]
    text: str
    thinking: Thinking = "never"
    is_dispensable: bool = False  # if it cannot be followed, the answer is unconstrained
    is_strict: bool = True  # no keyword of a schema may go unheeded


class Constraint(Protocol):
    """The state of a constraint along one answer. Decode thread only."""

    allowed: bytes
    """A bit for each token id, lowest first: whether the token may come next."""
    is_complete: bool
    """Whether no token may follow."""

    def accept(self, token_id: int) -> None:
        """Advance by an allowed token. Raises ConstraintFailed."""

    def allowed_after(self, token_ids: Sequence[int]) -> bytes | None:
        """Returns what `allowed` would be after these tokens; None if they are not allowed, or no
        token may follow them."""


Grammar = Callable[[], Constraint]
"""A compiled constraint. Call it for the state at the start of an answer. Any thread."""


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """Parameters of a request, without its prompt."""

    max_tokens: int | None = None  # None: up to the end of the context
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()  # in addition to the model's own
    min_tokens: int = 0  # no stop token or stop string ends the answer before this many
    includes_stop: bool = False  # whether the answer includes its stop string
    session_id: str | None = None  # None: a new one
    num_prompt_logprobs: int | None = None  # like `SamplingParams.num_logprobs`, for the prompt
    priority: int = 0  # lower ones leave the input queue earlier
    cache_salt: str = ""  # only prompts with equal salts share cached pages
    speculation: Speculation = "auto"  # `off`, `auto`, or one of the model's draft sources
    constraint: ConstraintSpec | None = None
    pooling: Pooling | None = None  # if set, the first event has the prompt's embedding
    kept_token_ids: frozenset[int] = frozenset()  # special tokens whose names stay in the text
    sampling: SamplingParams = field(default_factory=SamplingParams)
    unset: frozenset[str] = frozenset()  # members of `DEFAULTED` to take from the model's files


class OutputQueue:
    """The events of one request, in order. Any thread may put; one thread gets."""

    def __init__(self, session_id: SessionId, model: str) -> None:
        self.session_id = session_id
        self.model = model
        self.is_closed = False  # True once the reader is gone: the request need not run
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
    """A prompt to continue, which is not empty and shorter than the model's context. A request
    equals only itself, so it can serve as a key even if clients reuse a session id."""

    output: OutputQueue
    model: str  # the model's own name, no alias
    prompt_tokens: tuple[int, ...]
    params: GenerationParams = field(default_factory=GenerationParams)  # `unset` is empty
    stop_token_ids: frozenset[int] = frozenset()  # includes the model's own
    not_stopping: bytes | None = None  # with `min_tokens`, a bit for each id: it is no stop token
    arrived_s: float = 0.0  # arrival on the monotonic clock
    grammar: Grammar | None = None
    caller: Caller = Caller("")

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every prompt token must be computed, because it is scored or pooled."""
        return self.params.num_prompt_logprobs is not None or self.params.pooling == "mean"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The natural log probability of a token in the model's own distribution, before bias,
    penalties and temperature."""

    logprob: float
    rank: int  # among all tokens; 1 is the likeliest
    top: tuple[tuple[int, float], ...]  # the likeliest tokens at this position, best first


class ScoredToken(NamedTuple):
    """A token and its log probability; None for a prompt's first token, which follows nothing."""

    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Switch:
    """The seconds that a request waited because its model was not in memory.

    It waited `wait_s` until its model was next to be loaded, `evict_s` for room, and `load_s` for
    the load: together, from its arrival until the model was ready. `is_initiator` says whether the
    load was begun for this request. `from_name` is the model that served before, if any.
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
    """The results of one step for a session."""

    token_ids: tuple[int, ...] = ()
    """New tokens, without stop tokens."""
    finish_reason: FinishReason | None = None
    """Set on a session's last event."""
    error: HearthError | None = None
    """Set exactly when the finish reason is `ERROR`."""
    admitted_at_s: float | None = None
    """When the request got a row, on the monotonic clock; None before."""
    reused_tokens: int = 0
    """Prompt tokens that needed no prefill because they were cached."""
    batch_size: int = 0
    """Rows that decoded together in the step."""
    drafted_tokens: int = 0
    """Number of tokens guessed after the certain one, or the depth of their tree."""
    accepted_tokens: int = 0
    """Number of guessed tokens that were accepted."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One entry for each token, if the request asks for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """In the first event only: one entry for each prompt token except the first."""
    switch: Switch | None = None
    """Set if the model had to be loaded for the request."""
    embedding: bytes | None = None
    """In the first event only, if `pooling` asks for it: float32, little-endian."""
