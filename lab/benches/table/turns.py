"""Runs turns: one of several servers answers all requests of a load, while the others are idle."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Self

import psutil

from common.fetch import PROBE, fetch
from lab.kit.completions import Request, Stream, complete
from lab.kit.servers import ServedApi


class Counts(NamedTuple):
    """Totals of a server, or their growth in a turn. A row step is a row's part in a step."""

    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    row_steps: int = 0
    steps: int = 0
    model_s: float = 0.0  # seconds of all steps inside the model

    @classmethod
    def of(cls, api: ServedApi) -> Self:
        """Returns the totals of Hearth's decode loop so far."""
        lines = fetch(f"{api.url}/metrics", PROBE).decode().splitlines()
        [row_steps] = [line for line in lines if line.startswith("inference_batch_size_sum")]
        totals = api.state()["totals"]
        known = {name: totals[name] for name in cls._fields if name in totals}
        return cls(row_steps=int(float(row_steps.split()[-1])), **known)

    @classmethod
    def reported(cls, streams: Sequence[Stream]) -> Self:
        """Returns counts from the answers of llama.cpp's server. Each answer begins with a token
        from prefill, and each decode step adds one token to the accepted ones."""
        timings = [stream.last["timings"] for stream in streams]
        generated = sum(stream.num_tokens for stream in streams)
        accepted = sum(each.get("draft_n_accepted", 0) for each in timings)
        drafted = sum(each.get("draft_n", 0) for each in timings)
        return cls(generated, drafted, accepted, generated - accepted)

    @classmethod
    def sum(cls, several: Iterable[Self]) -> Self:
        return cls._make(map(sum, zip(*several, strict=True)))

    def since(self, earlier: Self) -> Self:
        return type(self)._make(now - then for now, then in zip(self, earlier, strict=True))

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def tokens_per_step(self) -> float:
        """Returns the tokens per step of a row."""
        return self.generated_tokens / self.row_steps

    @property
    def step_ms(self) -> float | None:
        """Returns the mean time of a step in the model; None if the server does not report it."""
        return 1000 * self.model_s / self.steps if self.steps else None


@dataclass(frozen=True, slots=True)
class Server:
    """A server that takes turns. `label` is its name in the table, `plain` the name of the server
    to compare it with, which has the same weights without speculation."""

    label: str
    plain: str
    port: int
    process: psutil.Process
    counts: Callable[[Sequence[Stream]], Counts]  # returns totals so far, or of the streams
    least_users: int = 1  # it takes no part with fewer users

    @property
    def name(self) -> str:
        """The label without brackets, which variants of a server share."""
        return self.label.partition(" (")[0]

    def memory_mib(self) -> float:
        """Returns the resident memory of the server's processes."""
        members = [self.process, *self.process.children(recursive=True)]
        return sum(member.memory_info().rss for member in members) / 2**20


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn's results. `tokens_per_s` are all new tokens over the whole time, so it includes
    prefill. `decode_tokens_per_s` is for one user, after the first token of an answer."""

    texts: list[str]
    tokens_per_s: float
    decode_tokens_per_s: float
    ttfts_s: list[float]
    counts: Counts


def turn_of(server: Server, asked: Sequence[Request], users: int) -> Turn:
    """Runs a closed loop: a user sends its next request when its last answer has ended."""
    before, began_s = server.counts([]), time.perf_counter()
    with ThreadPoolExecutor(users) as pool:
        streams = list(pool.map(lambda request: complete(server.port, request), asked))
    seconds = time.perf_counter() - began_s
    texts, ttfts_s = [each.text for each in streams], [each.ttft_s for each in streams]
    written, wanted = [each.num_tokens for each in streams], [each.max_tokens for each in asked]
    assert written == wanted, f"{server.label} wrote {written} tokens instead of {wanted}"
    decoding_s = sum(each.total_s - each.ttft_s for each in streams)
    decode_tokens_per_s = (sum(written) - len(written)) / decoding_s
    counts = server.counts(streams).since(before)
    return Turn(texts, sum(written) / seconds, decode_tokens_per_s, ttfts_s, counts)
