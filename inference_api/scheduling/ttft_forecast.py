"""The time to first token that a request would have if it came now.

Pure, but for `Traffic`, which belongs to the decode thread.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inference_api.request import GenerationRequest
from inference_api.scheduling.rows import UserRow
from inference_api.scheduling.running_mean import RunningMean

TRAFFIC_RATE = 0.05  # how fast it is learned what requests are like
MAX_FORESEEN = 256  # waiting requests that are looked at one by one


class Work(NamedTuple):
    """What is left of a request: tokens of its prompt to prefill, tokens of its answer."""

    prompt_tokens: float
    answer_tokens: float


def _mean() -> RunningMean:
    return RunningMean(TRAFFIC_RATE)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What requests of a model were like lately."""

    prompt_tokens: RunningMean = field(default_factory=_mean)
    token_limit: RunningMean = field(default_factory=_mean)
    computed_share: RunningMean = field(default_factory=_mean)  # of prompts, not reused
    answer_share: RunningMean = field(default_factory=_mean)  # of the limit

    def started(self, row: UserRow) -> None:
        self.prompt_tokens.learn(len(row.request.prompt_tokens))
        self.token_limit.learn(row.token_limit)

    def ended(self, row: UserRow) -> None:
        self.computed_share.learn(1 - row.reused_tokens / len(row.request.prompt_tokens))
        self.answer_share.learn(len(row.generated) / row.token_limit if row.token_limit else 0.0)

    def left(self, row: UserRow) -> Work:
        prompt_tokens = max(len(row.request.prompt_tokens) - 1 - row.num_cached, 0)
        return Work(prompt_tokens, self._answered(row.token_limit - len(row.generated)))

    def expected(self, request: GenerationRequest, max_seq_len: int) -> Work:
        num_tokens = len(request.prompt_tokens)
        limit = min(request.max_tokens, max_seq_len - num_tokens)
        return Work(self._computed(num_tokens), self._answered(limit))

    def newcomer(self) -> Work | None:
        """A request like the others; None until there was one."""
        if not self.prompt_tokens.count:
            return None
        prompt_tokens = self._computed(self.prompt_tokens.mean)
        return Work(prompt_tokens, self._answered(self.token_limit.mean))

    def _computed(self, prompt_tokens: float) -> float:
        return prompt_tokens * (self.computed_share.mean if self.computed_share.count else 1.0)

    def _answered(self, token_limit: float) -> float:
        """Tokens of an answer that has so many left, by how much others took of theirs."""
        return token_limit * (self.answer_share.mean if self.answer_share.count else 1.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """What steps take with as many rows as will be busy, in seconds."""

    turn_s: float  # of a step without prompts, and of the loop around it
    prompt_token_s: float  # that each prompt token adds
    room_tokens: int  # prompt tokens of a step
    tokens_per_step: float = 1.0  # of a row; more with drafts


@dataclass(frozen=True, slots=True)
class TtftForecast:
    """As `num_waiting` requests were in the line and `num_free` rows beside were free."""

    ttft_s: float
    least_s: float  # with nobody ahead
    each_s: float  # that one more in the line adds
    num_waiting: int
    num_free: int

    def at(self, num_waiting: int) -> float:
        """Seconds to the first token with so many in the line."""
        more = num_waiting - self.num_waiting
        more = max(0, more - self.num_free) if more > 0 else more
        return max(self.least_s, self.ttft_s + more * self.each_s)


def forecast(
    num_rows: int,
    running: Sequence[Work],
    waiting: Sequence[Work],
    newcomer: Work,
    pace: Pace,
) -> TtftForecast:
    """Plays the rows forward: who waits takes, in order, the row that is free first. Prompts are
    read beside, and add to the time of all."""
    prefill_s = newcomer.prompt_tokens * pace.prompt_token_s
    own_s = prefill_s + _prefill_steps(newcomer, pace) * pace.turn_s
    num_free = max(0, num_rows - len(running))
    free_at = [0.0] * num_free + [_steps(each, pace) for each in running]  # in steps from now
    heapq.heapify(free_at)
    for each in waiting:
        heapq.heapreplace(free_at, free_at[0] + _steps(each, pace))
    start_steps = free_at[0]
    ahead_tokens = sum([each.prompt_tokens for each in (*running, *waiting)])
    start_s = start_steps * pace.turn_s + ahead_tokens * pace.prompt_token_s
    return TtftForecast(
        start_s + own_s,
        own_s,
        _steps(newcomer, pace) * pace.turn_s / num_rows + prefill_s,
        len(waiting),
        max(0, num_free - len(waiting)),
    )


def _steps(work: Work, pace: Pace) -> float:
    """Steps that a request is in its row."""
    return _prefill_steps(work, pace) + work.answer_tokens / pace.tokens_per_step


def _prefill_steps(work: Work, pace: Pace) -> int:
    """The last of these draws the first token."""
    return max(1, math.ceil(work.prompt_tokens / pace.room_tokens))
