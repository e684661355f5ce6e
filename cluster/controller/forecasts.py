"""Forecasts of a server's next period, and how often they held. Controller thread only.

An interval is as wide as earlier forecasts were off. Of n distances between forecast and
measurement, it takes the k-th smallest, with k = 0.9 (n + 1) rounded up (split conformal
prediction): it holds nine times in ten, however they are distributed, while they go on as before.
Where they do not, k grows with each that did not hold (adaptive conformal inference, Gibbs and
Candès, 2021), and falls with those that did.
Rates of arrivals are compared by their roots and latencies by their logarithms, so that
distances do not grow with the load.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from pydantic import FiniteFloat

SHARE = 0.9  # intervals that are to hold, of all
SHARE_STEP = 0.02  # for one that is missing from them
KEPT = 200  # forecasts of a figure that are judged together
ANSCOMBE = 3 / 8  # added before a root is taken
LEAST_MS = 1e-3
# What floats can hold once it is no root or logarithm: a journal may say that anything came.
LARGEST_ROOT, LARGEST_LOG = 1e150, 690.0
ARRIVALS = "arrivals_per_minute"


@dataclass(frozen=True, slots=True)
class Forecast:
    """From `low` to `high`: None while too few forecasts were compared with what came."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class JudgedForecast:
    """A forecast beside what came. `distance`: as intervals are made of it; the rest is known of
    one that had an interval. Both ratios are as in `Score`."""

    distance: FiniteFloat
    has_interval: bool = False
    has_held: bool = False
    error_ratio: FiniteFloat = 0.0
    half_width_ratio: FiniteFloat = 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """The last forecasts that had intervals, and how many of these held. Medians of how far the
    forecasts were off, relative to what came, and of half an interval, relative to its forecast."""

    judged: int
    held: int
    error_ratio: float
    half_width_ratio: float


def score_of(judged: Iterable[JudgedForecast]) -> Score | None:
    """The score of these forecasts; None if none had an interval."""
    found = [each for each in judged if each.has_interval]
    if not found:
        return None
    return Score(
        len(found),
        sum(each.has_held for each in found),
        median(each.error_ratio for each in found),
        median(each.half_width_ratio for each in found),
    )


class _Record:
    """One figure of one server."""

    def __init__(self, is_rate: bool) -> None:
        self._is_rate = is_rate
        self.judged: deque[JudgedForecast] = deque(maxlen=KEPT)
        self._open: tuple[Forecast, float] | None = None
        """What is not compared yet, and how far off it may be for its interval to hold."""

    def make(self, value: float) -> Forecast:
        made, reach = Forecast(value), math.inf
        num = len(self.judged)
        if math.ceil(SHARE * (num + 1)) <= num:
            num_missing = sum(SHARE - each.has_held for each in self.judged if each.has_interval)
            rank = math.ceil((SHARE + SHARE_STEP * num_missing) * (num + 1))
            distances = sorted(each.distance for each in self.judged)
            reach, middle = distances[min(rank, num) - 1], self._scaled(value)
            made = Forecast(value, self._back(middle - reach), self._back(middle + reach))
        self._open = made, reach
        return made

    def judge(self, measured: float | None) -> JudgedForecast | None:
        """Compare the open forecast with what came; with nothing, if that is not known."""
        made, self._open = self._open, None
        if made is None or measured is None:
            return None
        said, reach = made
        distance = abs(self._scaled(said.value) - self._scaled(measured))
        judgement = JudgedForecast(distance)
        if said.low is not None and said.high is not None:
            error = abs(said.value - measured) / (measured or 1.0)
            half_width = (said.high - said.low) / 2 / (said.value or 1.0)
            judgement = JudgedForecast(distance, True, distance <= reach, error, half_width)
        self.judged.append(judgement)
        return judgement

    def _scaled(self, value: float) -> float:
        if self._is_rate:
            return math.sqrt(value + ANSCOMBE)
        return math.log(max(value, LEAST_MS))

    def _back(self, scaled: float) -> float:
        if self._is_rate:
            return max(min(max(scaled, 0.0), LARGEST_ROOT) ** 2 - ANSCOMBE, 0.0)
        return math.exp(min(scaled, LARGEST_LOG))


Figures = Mapping[str, float | None]
"""Values by name: ARRIVALS, `ttft_ms` and `itl_ms`; None where one is not known."""
JudgedForecasts = Mapping[str, Mapping[str, JudgedForecast]]
"""Keys: servers, then figures."""


def _records() -> dict[str, _Record]:
    return {name: _Record(is_rate=name == ARRIVALS) for name in (ARRIVALS, "ttft_ms", "itl_ms")}


class Forecasts:
    """Every figure of every server."""

    def __init__(self, past: Iterable[JudgedForecasts] = ()) -> None:
        """`past`: what was judged before, oldest first."""
        self._records: defaultdict[str, dict[str, _Record]] = defaultdict(_records)
        for judgements in past:
            for server, judged in judgements.items():
                for name, record in self._records[server].items():
                    record.judged.extend([judged[name]] if name in judged else [])

    def make(self, server: str, figures: Figures) -> dict[str, Forecast]:
        """The forecasts of the next period. Those of figures that are not known are left out."""
        known = {name: value for name, value in figures.items() if value is not None}
        return {name: self._records[server][name].make(value) for name, value in known.items()}

    def judge(self, server: str, measured: Figures) -> dict[str, JudgedForecast]:
        """Compare the open forecasts of a server with what came."""
        records = self._records[server].items()
        judged = {name: record.judge(measured.get(name)) for name, record in records}
        return {name: each for name, each in judged.items() if each is not None}

    def scores(self, server: str) -> dict[str, Score]:
        """How the forecasts of each figure did that were judged."""
        scores = {name: score_of(each.judged) for name, each in self._records[server].items()}
        return {name: score for name, score in scores.items() if score is not None}
