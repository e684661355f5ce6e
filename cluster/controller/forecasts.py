"""Forecasts a server's next period with intervals, and judges them. Controller thread only.

The half width of an interval is an earlier forecast's distance from its measurement. Of n such
distances it is the k-th smallest, with k = 0.9 (n + 1) rounded up (split conformal prediction). The
interval then holds nine times in ten for any distribution that does not change. For distributions
that change, k grows with each interval that failed and falls with each that held (adaptive
conformal inference, Gibbs and Candès, 2021). Arrival rates are compared by their square roots and
latencies by their logarithms, so that distances do not grow with the load.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from pydantic import FiniteFloat

SHARE = 0.9  # share of intervals that should hold
SHARE_STEP = 0.02  # raises the share for each interval that should have held
KEPT = 200  # forecasts of a figure that are judged together
ANSCOMBE = 3 / 8  # added before taking a square root
LEAST_MS = 1e-3
# Bounds on roots and logarithms, so that their values fit a float. A journal may hold any figure.
LARGEST_ROOT, LARGEST_LOG = 1e150, 690.0
ARRIVALS = "arrivals_per_minute"


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast and its interval. `low` and `high` are None until enough forecasts were judged."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class JudgedForecast:
    """A forecast compared with its measurement. Intervals are made of `distance`. The other fields
    are for forecasts with intervals; `Score` explains the two ratios."""

    distance: FiniteFloat
    has_interval: bool = False
    has_held: bool = False
    error_ratio: FiniteFloat = 0.0
    half_width_ratio: FiniteFloat = 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """The number of recent forecasts with intervals, and of intervals that held. `error_ratio` is
    the median error relative to the measurement, `half_width_ratio` the median of half an interval
    relative to its forecast."""

    judged: int
    held: int
    error_ratio: float
    half_width_ratio: float


def score_of(judged: Iterable[JudgedForecast]) -> Score | None:
    """Returns the score of these forecasts; None if none had an interval."""
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
    """The forecasts of one figure of one server."""

    def __init__(self, is_rate: bool) -> None:
        self._is_rate = is_rate
        self.judged: deque[JudgedForecast] = deque(maxlen=KEPT)
        self._open: tuple[Forecast, float] | None = None
        """The forecast not judged yet, and the largest distance within its interval."""

    def make(self, value: float) -> Forecast:
        forecast, reach = Forecast(value), math.inf
        num = len(self.judged)
        if math.ceil(SHARE * (num + 1)) <= num:
            num_missing = sum(SHARE - each.has_held for each in self.judged if each.has_interval)
            rank = math.ceil((SHARE + SHARE_STEP * num_missing) * (num + 1))
            distances = sorted(each.distance for each in self.judged)
            reach, middle = distances[min(rank, num) - 1], self._scaled(value)
            forecast = Forecast(value, self._back(middle - reach), self._back(middle + reach))
        self._open = forecast, reach
        return forecast

    def judge(self, measured: float | None) -> JudgedForecast | None:
        """Compare the open forecast with the measurement. Returns None if either is missing."""
        opened, self._open = self._open, None
        if opened is None or measured is None:
            return None
        forecast, reach = opened
        distance = abs(self._scaled(forecast.value) - self._scaled(measured))
        judgement = JudgedForecast(distance)
        if forecast.low is not None and forecast.high is not None:
            error = abs(forecast.value - measured) / (measured or 1.0)
            half_width = (forecast.high - forecast.low) / 2 / (forecast.value or 1.0)
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
"""Values by name: ARRIVALS, `ttft_ms` and `itl_ms`; None for an unknown value."""
JudgedForecasts = Mapping[str, Mapping[str, JudgedForecast]]
"""Keys: servers, then figures."""


def _records() -> dict[str, _Record]:
    return {name: _Record(is_rate=name == ARRIVALS) for name in (ARRIVALS, "ttft_ms", "itl_ms")}


class Forecasts:
    """The forecasts of every figure of every server."""

    def __init__(self, past: Iterable[JudgedForecasts] = ()) -> None:
        """`past` are forecasts that were judged before, oldest first."""
        self._records: defaultdict[str, dict[str, _Record]] = defaultdict(_records)
        for judgements in past:
            for server, judged in judgements.items():
                for name, record in self._records[server].items():
                    record.judged.extend([judged[name]] if name in judged else [])

    def make(self, server: str, figures: Figures) -> dict[str, Forecast]:
        """Returns forecasts of the next period. Leaves out unknown figures."""
        records = self._records[server]
        return {name: records[name].make(v) for name, v in figures.items() if v is not None}

    def judge(self, server: str, measured: Figures) -> dict[str, JudgedForecast]:
        """Compare the open forecasts of a server with measurements."""
        records = self._records[server].items()
        judged = {name: record.judge(measured.get(name)) for name, record in records}
        return {name: each for name, each in judged.items() if each is not None}

    def scores(self, server: str) -> dict[str, Score]:
        """Returns the accuracy of the judged forecasts, by figure."""
        scores = {name: score_of(each.judged) for name, each in self._records[server].items()}
        return {name: score for name, score in scores.items() if score is not None}
