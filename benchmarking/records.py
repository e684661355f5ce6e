"""The records of a measurement, which `run_files` writes and reads.

A `Run` has rows, each of them a group of requests of one shape to one model, and one
`RequestRecord` per request with every time that was read. Other figures are not stored: every
metric can be computed again from `run.json` and `raw.jsonl`.

All fields in `_s` are seconds on one monotonic clock that starts with the run, at
`Run.started_at`. Files are refused whose figures are beyond the bounds below. Everything here is
immutable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field

SCHEMA_VERSION = 1
INTERRUPTED = "interrupted"  # the code of a request that the user's Ctrl-C cut off

BROKEN_OFF = ("error", "abort", "cancelled")  # finish reasons of incomplete answers

MAX_NUMBER = 10**15  # beyond this, a float does not count tokens exactly
MAX_TOKENS = MAX_REQUESTS = 10_000_000
MAX_USERS, MAX_QPS = 10_000, 1e5
MAX_SCV = 100.0  # the largest that the optimizer accepts
MAX_SEED = 2**63 - 1
MAX_S = 1e9  # decades; a float of this size still tells microseconds

Figure = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Spread = Annotated[float, Field(ge=0, le=MAX_SCV)]
Seconds = Annotated[float, Field(ge=0, le=MAX_S)]
Difference = Annotated[float, Field(ge=-MAX_S, le=MAX_S)]
Moment = Annotated[
    datetime, Field(ge=datetime(1970, 1, 2, tzinfo=UTC), le=datetime(9000, 1, 1, tzinfo=UTC))
]

Distribution = Literal["constant", "uniform", "exponential"]
ImageSize = Literal["na", "small", "medium", "large"]


@dataclass(frozen=True, slots=True)
class Workload:
    """The load of one row. Exactly one of `concurrency` and `qps` is set.

    `concurrency` is the number of users in a closed loop. Each sends a request, waits for the
    answer, thinks for `think_s`, and sends the next one. `qps` is the number of requests per second
    in an open loop, which are sent on a schedule without waiting for answers.
    `prompts_path` is a file of the user's own prompts, each sent once, instead of generated ones.
    `input_tokens` is then their mean, which is known once the row has run. The fields in `_scv` are
    squared coefficients of variation (variance / mean squared) of gamma distributions: of prompts'
    lengths, of answers' lengths, and of an open loop's waits, instead of `qps_distribution`.
    """

    model: str
    input_tokens: Tokens
    output_tokens: Tokens
    num_requests: Annotated[int, Field(ge=0, le=MAX_REQUESTS)]
    concurrency: Annotated[int, Field(ge=0, le=MAX_USERS)] | None = None
    qps: Annotated[float, Field(ge=0, le=MAX_QPS)] | None = None
    qps_distribution: Distribution = "constant"
    image_size: ImageSize = "na"
    prompts_path: str | None = None
    input_scv: Spread = 0.0
    output_scv: Spread = 0.0
    arrival_scv: Spread | None = None
    think_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """The server's own report on one request; None where it has none. Rates are in tokens/s."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    ttft_s: Figure | None = None
    end_to_end_latency_s: Figure | None = None
    output_tokens_per_s: Figure | None = None  # after the first token
    total_tokens_per_s: Figure | None = None
    first_ten_tokens_per_s: Figure | None = None  # the ten tokens after the first
    batch_size_used: Count | None = None
    acceptance_rate: Figure | None = None  # draft tokens accepted / proposed
    switching_time_s: Figure | None = None  # the wait for the model to be brought into memory
    queue_s: Figure | None = None  # the part of `ttft_s` before the request was admitted
    tokens_per_step: Figure | None = None  # mean of a speculative step, with the certain token
    acceptance_by_depth: tuple[Figure, ...] = ()  # accepted share at depths 1, 2, ...
    reasoning_tokens: Count | None = None  # part of completion_tokens, which may not be sent


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request failed. `code` is the HTTP status, `timeout`, `connection`, `protocol`,
    `server`, `empty`, `ignored` (images, by a model that reads only text) or `interrupted`."""

    code: str
    message: str


def failure_of(
    error: RequestError | None, finish_reason: str | None, chunk_s: Sequence[float]
) -> RequestError | None:
    """Returns why a request does not count as completed; None if it does.

    All figures use this decision: a completed request has no error, some text, and no finish reason
    of BROKEN_OFF. Tool calls alone are no text.
    """
    if error is None and finish_reason in BROKEN_OFF:
        return RequestError("server", f"finish reason {finish_reason}")
    if error is None and not chunk_s:
        return RequestError("empty", f"no text came; finish reason {finish_reason}")
    return error


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request: when it was due, when it was sent, and when each piece of its answer came.

    In a closed loop a request is due at the moment when its user is free. `chunk_s` has one time
    for each event with text, read before the event was parsed. `chunk_tokens` has the number of
    tokens of that text by the client's tokenizer; it is empty without one.
    """

    row: Count  # index into Run.rows
    index: Count  # within its row, in the order of the schedule
    model: str
    prompt_name: str
    scheduled_s: Seconds
    sent_s: Seconds
    end_s: Seconds  # time of the last byte, or of the failure
    chunk_s: Annotated[tuple[Seconds, ...], Field(fail_fast=True)] = ()
    chunk_tokens: Annotated[tuple[Count, ...], Field(fail_fast=True)] = ()
    prompt_tokens: Count | None = None  # counted by the client, without the chat template
    completion_tokens: Count | None = None  # counted by the client
    usage: ServerUsage | None = None
    status: Count | None = None  # None without an answer
    finish_reason: str | None = None
    error: RequestError | None = None
    is_warmup: bool = False
    num_waits: Count = 0  # how often it was sent again after a 429 with Retry-After

    @property
    def server(self) -> ServerUsage:
        """The server's own report, which is empty if none came."""
        return self.usage or ServerUsage()

    @property
    def failure(self) -> RequestError | None:
        return failure_of(self.error, self.finish_reason, self.chunk_s)

    @property
    def is_measured(self) -> bool:
        """Whether the request was neither part of the warm-up nor cut off by the user."""
        was_cut_off = self.error is not None and self.error.code == INTERRUPTED
        return not self.is_warmup and not was_cut_off


@dataclass(frozen=True, slots=True)
class ClientOverhead:
    """The client's own cost during one row, which shows whether it was the bottleneck.

    `stolen_share` is the time that the host took from all processes on the client's machine; None
    if the kernel does not report it. Shares are CPU seconds of one core per second.
    """

    cpu_share: Difference
    lag_p50_s: Difference  # how late its event loop ran timers
    lag_p99_s: Difference
    lag_max_s: Difference
    stolen_share: Difference | None = None


@dataclass(frozen=True, slots=True)
class RowRecord:
    """One row as it was run. `start_s` to `end_s` is the measured part, without the warm-up."""

    load: Workload
    name: str  # stem of the names of the row's files
    start_s: Seconds
    end_s: Seconds
    timestamp: Figure  # when it was written, in seconds since 1970
    overhead: ClientOverhead | None = None
    error: str | None = None  # why the row could not be run at all
    was_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine, versions and target of a run. It has no secrets."""

    machine: str
    versions: dict[str, str]
    argv: tuple[str, ...]
    target: str  # kind and address
    tokenizer: str  # the source of prompts' lengths
    user_rows: Count | None = None  # requests served at once, if the server reports it


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    started_at: Moment  # with its time zone; time 0 of all fields in `_s`
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    environment: Environment
    config: dict[str, object]  # the configuration as it was read
    rows: Annotated[tuple[RowRecord, ...], Field(fail_fast=True)] = ()
    records: tuple[RequestRecord, ...] = ()
    schema_version: Count = SCHEMA_VERSION

    def records_of(self, row: int) -> list[RequestRecord]:
        """Returns the measured requests of a row in the order of their schedule."""
        measured = [record for record in self.all_of(row) if record.is_measured]
        return sorted(measured, key=lambda record: record.index)

    def all_of(self, row: int) -> list[RequestRecord]:
        """Returns every request of a row, including the warm-up."""
        return [record for record in self.records if record.row == row]
