"""The nouns of a measurement. `run_files` keeps them.

A `Run` is a list of rows, each one group of requests of one shape to one model, and one
`RequestRecord` per request with every time that was read. No figure is stored that these do not
give: every metric can be computed again from `run.json` and `raw.jsonl`.

All fields in `_s` are seconds on one monotonic clock that starts with the run; `Run.started_at`
says when that was. Everything here is immutable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

SCHEMA_VERSION = 1
INTERRUPTED = "interrupted"  # the code of a request that the user's Ctrl-C cut off

BROKEN_OFF = ("error", "abort", "cancelled")  # finish reasons of answers that are not whole

Distribution = Literal["constant", "uniform", "exponential"]
ImageSize = Literal["na", "small", "medium", "large"]


@dataclass(frozen=True, slots=True)
class Workload:
    """The load of one row. Exactly one of `concurrency` and `qps` is set.

    `concurrency`: closed loop, so many requests in flight, each followed by the next after
    `think_s`, the think time of its user.
    `qps`: open loop, requests per second on a schedule that waits for no answer.
    `prompts_path`: the user's own prompts, each once, instead of made ones; `input_tokens` is then
    their mean, and known once the row has run. Spreads are squared coefficients of variation
    (variance over mean squared) of gamma distributions: of prompts' and answers' lengths, and of
    the waits of an open loop, in place of `qps_distribution`.
    """

    model: str
    input_tokens: int
    output_tokens: int
    num_requests: int
    concurrency: int | None = None
    qps: float | None = None
    qps_distribution: Distribution = "constant"
    image_size: ImageSize = "na"
    prompts_path: str | None = None
    input_scv: float = 0.0
    output_scv: float = 0.0
    arrival_scv: float | None = None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """The server's own account of one request; None where it says nothing. Rates are tokens/s."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    ttft_s: float | None = None
    end_to_end_latency_s: float | None = None
    output_tokens_per_s: float | None = None  # after the first token
    total_tokens_per_s: float | None = None
    first_ten_tokens_per_s: float | None = None  # the ten tokens after the first
    batch_size_used: int | None = None
    acceptance_rate: float | None = None  # draft tokens accepted / proposed
    switching_time_s: float | None = None  # spent bringing the model into memory
    queue_s: float | None = None  # the part of `ttft_s` before the request was admitted
    tokens_per_step: float | None = None  # tokens of one speculative step, the certain one included
    acceptance_by_depth: tuple[float, ...] = ()  # shares of the drafts of at least 1, 2, ... levels
    reasoning_tokens: int | None = None  # part of completion_tokens; may not be sent


@dataclass(frozen=True, slots=True)
class RequestError:
    """`code`: the HTTP status, `timeout`, `connection`, `protocol`, `server`, `empty`, `ignored`
    (images, by a model that reads text only) or `interrupted`."""

    code: str
    message: str


def failure_of(
    error: RequestError | None, finish_reason: str | None, chunk_s: Sequence[float]
) -> RequestError | None:
    """Returns why a request does not count as completed; None if it does.

    This alone decides, for every figure: a completed request ended as asked, with text, and with
    no finish reason that says otherwise. Tool calls alone are no text.
    """
    if error is None and finish_reason in BROKEN_OFF:
        return RequestError("server", f"finish reason {finish_reason}")
    if error is None and not chunk_s:
        return RequestError("empty", f"no text came; finish reason {finish_reason}")
    return error


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request: when it was due, when it was sent, when each piece of its answer came.

    In a closed loop a request is due the moment its worker is free. `chunk_s` has one time for
    each event that carried text, read before the event was parsed; `chunk_tokens` is how many
    tokens that text is to the client's tokenizer, or empty without one.
    """

    row: int  # index into Run.rows
    index: int  # within its row, in the order of the schedule
    model: str
    prompt_name: str
    scheduled_s: float
    sent_s: float
    end_s: float  # the last byte, or the failure
    chunk_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    prompt_tokens: int | None = None  # as the client counts, without the chat template
    completion_tokens: int | None = None  # as the client counts
    usage: ServerUsage | None = None
    status: int | None = None  # None: no answer
    finish_reason: str | None = None
    error: RequestError | None = None
    is_warmup: bool = False
    num_waits: int = 0  # times the server had it wait before it was sent again: 429, Retry-After

    @property
    def server(self) -> ServerUsage:
        """The server's own account, which says nothing if none came."""
        return self.usage or ServerUsage()

    @property
    def failure(self) -> RequestError | None:
        return failure_of(self.error, self.finish_reason, self.chunk_s)

    @property
    def is_measured(self) -> bool:
        """Whether the request is neither warm-up nor cut off by the user."""
        was_cut_off = self.error is not None and self.error.code == INTERRUPTED
        return not self.is_warmup and not was_cut_off

    @property
    def first_token_s(self) -> float | None:
        return self.chunk_s[0] if self.chunk_s else None


@dataclass(frozen=True, slots=True)
class ClientOverhead:
    """The client's own cost during one row, to see whether it was the bottleneck.

    `stolen_share`: what the host took from the client's machine, from everybody on it; None where
    no kernel tells. Shares are CPU seconds per second, of one core.
    """

    cpu_share: float
    lag_p50_s: float  # how late its event loop ran a timer
    lag_p99_s: float
    lag_max_s: float
    stolen_share: float | None = None


@dataclass(frozen=True, slots=True)
class RowRecord:
    """One row as it was run. `start_s` to `end_s` is the measured part, without the warm-up."""

    load: Workload
    name: str  # stem of the row's files
    start_s: float
    end_s: float
    timestamp: float  # when it was written, Unix seconds
    overhead: ClientOverhead | None = None
    error: str | None = None  # why the row could not be run at all
    was_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """Machine, versions and target of a run. Holds no secret."""

    machine: str
    versions: dict[str, str]
    argv: tuple[str, ...]
    target: str  # kind and address
    tokenizer: str  # where prompt lengths come from
    user_rows: int | None = None  # requests served at once, by the server's own word


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    started_at: datetime  # with its time zone; zero of every `_s`
    seed: int
    environment: Environment
    config: dict[str, object]  # as it was read
    rows: tuple[RowRecord, ...] = ()
    records: tuple[RequestRecord, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def records_of(self, row: int) -> list[RequestRecord]:
        """The measured requests of a row in the order of their schedule."""
        measured = [record for record in self.all_of(row) if record.is_measured]
        return sorted(measured, key=lambda record: record.index)

    def all_of(self, row: int) -> list[RequestRecord]:
        """Every request of a row, warm-up too."""
        return [record for record in self.records if record.row == row]
