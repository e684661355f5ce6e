"""The latencies of one request, from its record. Pure: any thread.

TTFT and end-to-end latency count from when a request was *due*, so that a client or server that
falls behind the schedule does not hide the wait (coordinated omission).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarking.errors import Unfit
from benchmarking.records import RequestRecord, ServerUsage

MISCOUNT = 1.5  # two tokenizers' counts of the same text differ by less than this factor


def succeeded(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Returns the records of requests that completed (`records.failure_of`)."""
    return [record for record in records if record.failure is None]


def received_tokens(usage: ServerUsage, events: int, counted: int | None = None) -> int:
    """Returns the answer's tokens by the server's count, without a thought that it did not send.

    If the client's count differs by more than MISCOUNT, that is returned. Without either count,
    each event counts as a token.
    """
    num_tokens, thought = usage.completion_tokens, usage.reasoning_tokens
    if num_tokens and thought and (counted or events) < num_tokens - thought / 2:
        num_tokens = max(num_tokens - thought, 1)
    if num_tokens and counted and not counted / MISCOUNT <= num_tokens <= counted * MISCOUNT:
        num_tokens = counted
    return num_tokens or counted or events


def output_tokens(record: RequestRecord) -> int:
    return received_tokens(record.server, len(record.chunk_s), record.completion_tokens)


def hidden_tokens(record: RequestRecord) -> int:
    """Returns the tokens that the server counted but did not send, such as hidden thoughts."""
    return max(0, (record.server.completion_tokens or 0) - output_tokens(record))


def input_tokens(record: RequestRecord) -> int | None:
    """Returns the prompt's tokens as the server counts (with the chat template), or the client."""
    return record.server.prompt_tokens or record.prompt_tokens


def mean_tokens(records: Iterable[RequestRecord]) -> tuple[float, float]:
    """Returns the mean input and output tokens of answered requests. Raises Unfit if neither server
    nor client counted the prompts."""
    answered = succeeded(records)
    inputs = [tokens for record in answered if (tokens := input_tokens(record)) is not None]
    if not inputs:
        raise Unfit("no answer has the number of its prompt's tokens; measure with --tokenizer")
    return fmean(inputs), fmean(output_tokens(record) for record in answered)


def ttft_s(record: RequestRecord) -> float | None:
    return record.chunk_s[0] - record.scheduled_s if record.chunk_s else None


def itl_s(record: RequestRecord) -> float | None:
    """Returns the mean time from one token to the next; None for fewer than two tokens or events.
    It counts tokens, because an event may have several."""
    gaps = output_tokens(record) - 1
    if gaps < 1 or len(record.chunk_s) < 2:
        return None
    return (record.chunk_s[-1] - record.chunk_s[0]) / gaps


def e2e_s(record: RequestRecord) -> float | None:
    """Returns the seconds to the last token; None without any."""
    return record.chunk_s[-1] - record.scheduled_s if record.chunk_s else None


@dataclass(frozen=True, slots=True)
class Metric:
    """A latency of completed requests, with its name for people."""

    name: str
    seconds_of: Callable[[RequestRecord], float | None]

    def values(self, records: Iterable[RequestRecord]) -> list[float]:
        """Returns the values of completed requests that have one, in ms and in order."""
        seconds = (self.seconds_of(record) for record in succeeded(records))
        return [value * 1000.0 for value in seconds if value is not None]


TTFT = Metric("TTFT", ttft_s)
ITL = Metric("ITL", itl_s)
E2E = Metric("end-to-end latency", e2e_s)
LATENCIES: Sequence[Metric] = (TTFT, ITL, E2E)
