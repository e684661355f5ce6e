"""A service curve: the times of steps, as the optimizer's `serviceCurve` has them.

A step with n decoding rows and p prompt tokens takes a(n) + c(n) p ms. A server may report the
times of its steps (`read_speed`); for others they follow from closed loops (`closed_loops`). Pure,
except that `read_speed` may fetch a URL: any thread.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from benchmarking.errors import unreadable
from common.fetch import FetchBounds, fetch
from common.files import read_bounded
from common.numerics import scipy

MAX_SPEED_BYTES = 2**20
BOUNDS = FetchBounds(connect_s=5.0, read_s=10.0, max_bytes=MAX_SPEED_BYTES)
LEAST_ERROR = 0.002  # least relative error of a mean that clocks and loads allow
LEAST_MS = 1e-6  # least time of a step

Row = tuple[
    Annotated[int, Field(ge=1, le=65_536)],
    Annotated[float, Field(ge=LEAST_MS, le=1e9)],
    Annotated[float, Field(ge=0, le=1e9)],
]

PromptRow = tuple[  # the mean rows of a group of steps; 0 if no rows decoded
    Annotated[float, Field(ge=0, le=65_536)],
    Annotated[float, Field(ge=0, le=1e9)],  # 0 if steps with prompts took no longer
    Annotated[float, Field(ge=0, le=1e9)],
]


class Speed(BaseModel):
    """A server's report on the times of its steps, as lists of `[rows, ms, standard error]`."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    decode_ms: Annotated[list[Row], Field(min_length=1, max_length=256)]
    prefill_ms_per_token: Annotated[list[PromptRow], Field(min_length=1, max_length=256)]
    chunk_tokens: Annotated[int, Field(ge=1)] | None = None
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    speed_error: Annotated[float, Field(ge=0, le=1)] = 0.0
    measured_at: str | None = None

    def curve(self) -> "ServiceCurve":
        return ServiceCurve(
            decode=rising(self.decode_ms),
            prompt_token=tuple(_by_whole_rows(self.prefill_ms_per_token)),
            source="speed",
            speed_error=self.speed_error,
            chunk_tokens=self.chunk_tokens,
            budget_tokens=self.budget_tokens,
            measured_at=self.measured_at,
        )


SpeedT = TypeVar("SpeedT", bound=Speed)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    rows: int
    ms: float
    standard_error: float


Points = tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class ServiceCurve:
    """Times of steps by rows. `source` is speed, or closed loops. `speed_error` is relative, and
    common to all times. `overhead` is the time of a request outside of steps before its first
    token, by requests in service; `handling_ms` is the part for which requests that come together
    wait on each other. `slowness` has moments on a run's clock, in seconds, and the factor by which
    everything is slower from then on; it is for a simulation, not part of the curve."""

    decode: Points  # times never fall
    prompt_token: Points
    source: str
    overhead: Points | None = None  # None if unknown
    handling_ms: float = 0.0
    speed_error: float = 0.0
    chunk_tokens: int | None = None
    budget_tokens: int | None = None
    measured_at: str | None = None
    slowness: tuple[tuple[float, float], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the curve as the optimizer reads it."""
        found = {
            "decodeMs": _as_json(self.decode),
            "promptTokenMs": _as_json(self.prompt_token),
            "overheadMs": None if self.overhead is None else _as_json(self.overhead),
            "handlingMs": self.handling_ms or None,
            "speedError": self.speed_error,
            "chunkTokens": self.chunk_tokens,
            "budgetTokens": self.budget_tokens,
            "measuredAt": self.measured_at,
        }
        return {name: value for name, value in found.items() if value is not None}

    def of_requests(self, work_tokens: float, output_tokens: float) -> "ServiceCurve":
        """Returns the curve of closed loops for requests of these lengths.

        Longer prompts slow down later decode steps, which attend to them. In its own step a prompt
        token costs the same with few rows and with many.
        """
        first_ms = self.prompt_token[0].ms

        def attended_ms(rows: float) -> float:
            beyond_ms = max(at(self.prompt_token, rows) - first_ms, 0.0)
            return rows * beyond_ms * work_tokens / output_tokens

        return replace(
            self,
            decode=rising(
                (p.rows, p.ms + attended_ms(p.rows), p.standard_error) for p in self.decode
            ),
            prompt_token=tuple(replace(p, ms=min(p.ms, first_ms)) for p in self.prompt_token),
        )

    def line(self) -> str:
        """Returns the curve as text for people."""
        overhead = "unknown" if self.overhead is None else f"{_by_rows(self.overhead)} ms"
        return (
            f"serviceCurve (from {self.source}): ms of a step by rows {_by_rows(self.decode)}; "
            f"of a prompt token {_by_rows(self.prompt_token)}; outside of steps {overhead}, "
            f"of it {self.handling_ms:.3g} ms shared by requests that come at once; "
            f"speed ± {self.speed_error:.1%}"
        )


def read_speed(source: str, kind: type[SpeedT]) -> SpeedT:
    """Reads step times from a file, or from a server at `http://host:port/speed`, followed by
    `#model` if it serves several. Raises InvalidResults."""
    source, _, model = source.partition("#")
    try:
        if source.startswith(("http://", "https://")):
            raw = fetch(source, BOUNDS)
        else:
            raw = read_bounded(Path(source), MAX_SPEED_BYTES)
        return kind.model_validate(_of_model(json.loads(raw), model))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(source, error, kind) from error


def _of_model(reports: Any, model: str) -> Any:
    """Returns the report on one model, from a report on all by name. Raises ValueError."""
    if not isinstance(reports, dict) or "decode_ms" in reports:
        return reports
    if not model and len(reports) == 1:
        return next(iter(reports.values()))
    if model not in reports:
        raise ValueError(f"has no model {model!r}; add #NAME with one of {', '.join(reports)}")
    return reports[model]


def _by_whole_rows(rows: Iterable[PromptRow]) -> list[CurvePoint]:
    """Returns points at whole numbers of rows, at least 1. Rows that round to the same number are
    averaged, weighted by their errors."""
    together: dict[int, list[PromptRow]] = defaultdict(list)
    for row in sorted(rows):
        together[max(1, round(row[0]))].append(row)
    points = []
    for number, each in sorted(together.items()):
        if len(each) == 1:
            _, ms, error_ms = each[0]
            points.append(CurvePoint(number, max(ms, LEAST_MS), error_ms))
            continue
        weights = [1 / max(error, LEAST_ERROR * ms, LEAST_MS) ** 2 for _, ms, error in each]
        pairs = zip(weights, each, strict=True)
        mean_ms = sum(weight * ms for weight, (_, ms, _) in pairs) / sum(weights)
        points.append(CurvePoint(number, max(mean_ms, LEAST_MS), sum(weights) ** -0.5))
    return points


def at(points: Sequence[CurvePoint], rows: float) -> float:
    """Returns the time at `rows`, interpolated linearly; beyond the points, that of the nearest."""
    return float(np.interp(rows, [point.rows for point in points], [point.ms for point in points]))


def _by_rows(points: Points) -> str:
    """Returns points as text for people."""
    return ", ".join(f"{p.rows:.3g}: {p.ms:.3g} ± {p.standard_error:.2g}" for p in points)


def rising(rows: Iterable[tuple[int, float, float]]) -> Points:
    """Returns points whose times never fall with the rows, by isotonic regression."""
    points = sorted(rows)
    weights = [1 / max(error, LEAST_ERROR * ms) ** 2 for _, ms, error in points]
    rising = scipy.optimize.isotonic_regression([ms for _, ms, _ in points], weights=weights).x
    return tuple(
        CurvePoint(n, float(ms), error) for (n, _, error), ms in zip(points, rising, strict=True)
    )


def _as_json(points: Iterable[CurvePoint]) -> list[Mapping[str, float]]:
    return [{"rows": p.rows, "ms": p.ms, "standardError": p.standard_error} for p in points]
