"""Computes the table's figures from turns: medians over rounds, gains, the bound of speculation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

from lab.benches.table.turns import Counts, Server, Turn

Turns = Mapping[str, Sequence[Turn]]  # server's name -> one turn per round

# Tokens/s of the published server, Falcon-40B: plain, quantised, Medusa, both.
PUBLISHED = (3.9, 10.6, 5.1, 13.3)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of a figure over rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(median(values), min(values), max(values))

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.least:{spec}} to {self.most:{spec}})"


@dataclass(frozen=True, slots=True)
class Row:
    """One server under one load. Ratios are over the server `plain` in the same round."""

    label: str
    plain: str
    users: int
    tokens_per_s: Spread
    ratio: Spread
    decode_tokens_per_s: Spread  # one user's
    decode_ratio: Spread
    ttft_ms: float
    acceptance_rate: float | None
    tokens_per_step: float
    step_ms: float | None
    memory_mib: float
    has_same_text: bool


def row_of(server: Server, users: int, turns: Turns) -> Row:
    own, others = turns[server.name], turns[server.plain]
    counts = Counts.sum(turn.counts for turn in own)
    return Row(
        server.label,
        server.plain,
        users,
        Spread.of([turn.tokens_per_s for turn in own]),
        Spread.of(gains(turns, server.name, server.plain)),
        Spread.of([turn.decode_tokens_per_s for turn in own]),
        Spread.of(decode_gains(turns, server.name, server.plain)),
        1000 * median(ttft_s for turn in own for ttft_s in turn.ttfts_s),
        counts.acceptance_rate,
        counts.tokens_per_step,
        counts.step_ms,
        server.memory_mib(),
        all(turn.texts == other.texts for turn, other in zip(own, others, strict=True)),
    )


def gains(turns: Turns, label: str, base: str) -> list[float]:
    """Returns tokens/s of one server over another's for the same requests, round by round."""
    pairs = zip(turns[label], turns[base], strict=True)
    return [turn.tokens_per_s / other.tokens_per_s for turn, other in pairs]


def decode_gains(turns: Turns, label: str, base: str) -> list[float]:
    """Returns the same as `gains` for a user's tokens/s after the first token."""
    pairs = zip(turns[label], turns[base], strict=True)
    return [turn.decode_tokens_per_s / other.decode_tokens_per_s for turn, other in pairs]


@dataclass(frozen=True, slots=True)
class Claim:
    """The four forms with one user, by tokens/s after the first token. `kept` is the gain of both
    over the product of single gains."""

    tokens_per_s: tuple[float, float, float, float]  # plain, quantised, Medusa, both
    kept: Spread

    @classmethod
    def of(cls, turns: Turns, labels: tuple[str, str, str, str]) -> Self:
        plain, *rest = labels
        products = zip(*(decode_gains(turns, label, plain) for label in rest), strict=True)
        kept = [both / (quantised * medusa) for quantised, medusa, both in products]
        first, second, third, fourth = (
            median(turn.decode_tokens_per_s for turn in turns[label]) for label in labels
        )
        return cls((first, second, third, fourth), Spread.of(kept))


@dataclass(frozen=True, slots=True)
class Bound:
    """The best speedup by drafts of fixed length at one load, and the scheduler's there.

    `speedups` by drafted tokens are tokens per step x t(B, 1) / t(B, N), where t is the mean time
    of a step in the model. `reached` is the scheduler's speedup by the same formula.
    """

    users: int
    speedups: Mapping[str, float]
    reached: float
    reached_tokens_per_s: Spread  # measured, over SPECULATION=off

    @property
    def best(self) -> float:
        """Returns the best speedup, at least 1, because drafting can be left out."""
        return max(1.0, *self.speedups.values())

    @property
    def share(self) -> float:
        return self.reached / self.best


def bound_of(rows: Sequence[Row], auto: str, off: str) -> Bound:
    """Returns the bound from the rows of one load: no drafts, the scheduler's, and fixed ones."""
    by_label = {row.label: row for row in rows}
    single = by_label[off]
    speedups = {label: speedup(row, single) for label, row in by_label.items() if label != off}
    reached = speedups.pop(auto)
    return Bound(single.users, speedups, reached, by_label[auto].ratio)


def speedup(row: Row, single: Row) -> float:
    """Returns a row's gain in tokens per step over its increase of step time. Source: the bound of
    Leviathan et al. (2023), with measured times of steps."""
    assert row.step_ms is not None
    assert single.step_ms is not None
    gained = row.tokens_per_step / single.tokens_per_step
    return gained * single.step_ms / row.step_ms
