"""Forecasts of a server's next period, and how often they held. Controller thread only.

An interval is as wide as earlier forecasts were off. Of n distances between forecast and
measurement, it takes the k-th smallest, with k = 0.9 (n + 1) rounded up (split conformal
prediction): it holds nine times in ten, however they are distributed, while they go on as before.
Rates of arrivals are compared by their roots and latencies by their logarithms, so that
distances do not grow with the load.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

SHARE = 0.9  # intervals that are to hold, of all
KEPT = 200  # forecasts of a figure that are judged together
ANSCOMBE = 3 / 8  # added before a root is taken
LEAST_MS = 1e-3
ARRIVALS = "arrivals_per_minute"


@dataclass(frozen=True, slots=True)
class Forecast:
    """From `low` to `high`: None while too few forecasts were compared with what came."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The last forecasts that had intervals, and how many of these held. Medians of how far the
    forecasts were off, relative to what came, and of half an interval, relative to its forecast."""

    judged: int
    held: int
    error_ratio: float
    half_width_ratio: float


class _Record:
    """One figure of one server."""

    def __init__(self, is_rate: bool) -> None:
        self._is_rate = is_rate
        self._distances: deque[float] = deque(maxlen=KEPT)
        self._judged: deque[tuple[bool, float, float]] = deque(maxlen=KEPT)
        self._open: tuple[Forecast, float] | None = None
        """What is not compared yet, and how far off it may be for its interval to hold."""

    def make(self, value: float) -> Forecast:
        rank = math.ceil(SHARE * (len(self._distances) + 1))
        made, reach = Forecast(value), math.inf
        if rank <= len(self._distances):
            reach, middle = sorted(self._distances)[rank - 1], self._scaled(value)
            made = Forecast(value, self._back(middle - reach), self._back(middle + reach))
        self._open = made, reach
        return made

    def judge(self, measured: float | None) -> None:
        """Compare the open forecast with what came; with nothing, if that is not known."""
        made, self._open = self._open, None
        if made is None or measured is None:
            return
        said, reach = made
        distance = abs(self._scaled(said.value) - self._scaled(measured))
        self._distances.append(distance)
        if said.low is not None and said.high is not None:
            error = abs(said.value - measured) / (measured or 1.0)
            half_width = (said.high - said.low) / 2 / (said.value or 1.0)
            self._judged.append((distance <= reach, error, half_width))

    @property
    def score(self) -> Score | None:
        if not self._judged:
            return None
        held, errors, half_widths = zip(*self._judged, strict=True)
        return Score(len(held), sum(held), median(errors), median(half_widths))

    def _scaled(self, value: float) -> float:
        if self._is_rate:
            return math.sqrt(value + ANSCOMBE)
        return math.log(max(value, LEAST_MS))

    def _back(self, scaled: float) -> float:
        if self._is_rate:
            return max(max(scaled, 0.0) ** 2 - ANSCOMBE, 0.0)
        return math.exp(scaled)


Figures = Mapping[str, float | None]
"""Values by name: ARRIVALS, `ttft_ms` and `itl_ms`; None where one is not known."""


def _records() -> dict[str, _Record]:
    return {name: _Record(is_rate=name == ARRIVALS) for name in (ARRIVALS, "ttft_ms", "itl_ms")}


class Forecasts:
    """Every figure of every server."""

    def __init__(self) -> None:
        self._records: defaultdict[str, dict[str, _Record]] = defaultdict(_records)

    def make(self, server: str, figures: Figures) -> dict[str, Forecast]:
        """The forecasts of the next period. Those of figures that are not known are left out."""
        known = {name: value for name, value in figures.items() if value is not None}
        return {name: self._records[server][name].make(value) for name, value in known.items()}

    def judge(self, server: str, measured: Figures) -> None:
        """Compare the open forecasts of a server with what came."""
        for name, record in self._records[server].items():
            record.judge(measured.get(name))

    def scores(self, server: str) -> dict[str, Score]:
        """How the forecasts of each figure did that were judged."""
        scores = {name: record.score for name, record in self._records[server].items()}
        return {name: score for name, score in scores.items() if score is not None}
