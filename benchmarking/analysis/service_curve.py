"""A service curve: what steps take, as the optimizer's `serviceCurve` has it.

A step of n rows that decode and p prompt tokens takes a(n) + c(n) p ms. A server may say its step
costs itself (`read_speed`); of any other they follow from closed loops (`fit_closed_loops`): of n
users with k prompt and o output tokens, prompts' work and steps fill the time of all n, so that

    end to end = overhead + n c (k - 1) + o a(n),      TTFT of one user = overhead + c k + a(1).

Pure but for the URL that `read_speed` may be given: any thread.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import requests
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.optimize import isotonic_regression, nnls

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.intervals import mean_within_run
from benchmarking.analysis.latency import E2E, TTFT, mean_tokens, succeeded
from benchmarking.errors import InvalidResults, Unfit

FloatArray = npt.NDArray[np.float64]

TIMEOUT_S = 10.0
MAX_SPEED_BYTES = 2**20
MIN_USERS = 3  # different numbers of them, that make a curve
DIFFERENT_LENGTHS = 1.5  # longest prompts over the shortest, to tell overhead from their work
IN_95 = 1.96
LEAST_ERROR = 0.002  # of a mean; none is known better than the clock and the load allow
LEAST_MS = 1e-6  # of a step

Row = tuple[
    Annotated[int, Field(ge=1, le=65_536)],
    Annotated[float, Field(ge=LEAST_MS, le=1e9)],
    Annotated[float, Field(ge=0, le=1e9)],
]

PromptRow = tuple[  # rows are means of steps with about as many, and 0 where none decoded
    Annotated[float, Field(ge=0, le=65_536)],
    Annotated[float, Field(ge=0, le=1e9)],  # 0: steps with prompts took no longer
    Annotated[float, Field(ge=0, le=1e9)],
]


class Speed(BaseModel):
    """What a server says of its steps, in ms: `[rows, ms, standard error]` each."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    decode_ms: Annotated[list[Row], Field(min_length=1, max_length=256)]
    prefill_ms_per_token: Annotated[list[PromptRow], Field(min_length=1, max_length=256)]
    chunk_tokens: Annotated[int, Field(ge=1)] | None = None
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    speed_error: Annotated[float, Field(ge=0, le=1)] = 0.0
    measured_at: str | None = None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    rows: int
    ms: float
    standard_error: float

    def times(self, factor: float) -> "CurvePoint":
        return CurvePoint(self.rows, factor * self.ms, factor * self.standard_error)


@dataclass(frozen=True, slots=True)
class ServiceCurve:
    """`source`: speed, or closed loops. `speed_error` is relative, and common to all times."""

    decode: tuple[CurvePoint, ...]  # ms never fall
    prompt_token: tuple[CurvePoint, ...]
    source: str
    overhead_ms: float | None = None  # of a request before its first token; None: not known
    speed_error: float = 0.0
    chunk_tokens: int | None = None
    budget_tokens: int | None = None
    measured_at: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As the optimizer reads it."""
        found = {
            "decodeMs": _as_json(self.decode),
            "promptTokenMs": _as_json(self.prompt_token),
            "overheadMs": self.overhead_ms,
            "speedError": self.speed_error,
            "chunkTokens": self.chunk_tokens,
            "budgetTokens": self.budget_tokens,
            "measuredAt": self.measured_at,
        }
        return {name: value for name, value in found.items() if value is not None}

    def at_speed(self, slowness: float, speed_error: float) -> "ServiceCurve":
        """Returns the curve of a moment at which everything takes so many times as long."""
        return replace(
            self,
            decode=tuple(point.times(slowness) for point in self.decode),
            prompt_token=tuple(point.times(slowness) for point in self.prompt_token),
            overhead_ms=None if self.overhead_ms is None else slowness * self.overhead_ms,
            speed_error=speed_error,
        )

    def closed_loop_ms(self, users: int, work_tokens: float, output_tokens: float) -> float:
        """Returns the end to end latency in a closed loop of so many users."""
        rows, ms = [point.rows for point in self.decode], [point.ms for point in self.decode]
        step_ms = float(np.interp(users, rows, ms))
        prompts_ms = users * self.prompt_token[0].ms * work_tokens
        return (self.overhead_ms or 0.0) + prompts_ms + output_tokens * step_ms

    def line(self) -> str:
        """For people."""
        steps = ", ".join(f"{p.rows}: {p.ms:.3g} ± {p.standard_error:.2g}" for p in self.decode)
        first = self.prompt_token[0]
        overhead = "unknown" if self.overhead_ms is None else f"{self.overhead_ms:.3g} ms"
        return (
            f"serviceCurve (from {self.source}): ms of a step by rows {steps}; {first.ms:.3g} ± "
            f"{first.standard_error:.2g} ms per prompt token; outside of steps {overhead}; "
            f"speed ± {self.speed_error:.1%}"
        )


def read_speed(source: str) -> ServiceCurve:
    """Reads step costs from a file, or of a server: `http://host:port/speed`, with `#model` behind
    it where several are served. Raises InvalidResults."""
    source, _, model = source.partition("#")
    try:
        if source.startswith(("http://", "https://")):
            response = requests.get(source, timeout=TIMEOUT_S)
            response.raise_for_status()
            raw = response.content
        else:
            raw = Path(source).read_bytes()
        if len(raw) > MAX_SPEED_BYTES:
            raise InvalidResults(f"{source}: {len(raw)} bytes; step costs have far fewer")
        said = Speed.model_validate(_of_model(json.loads(raw), model))
    except (OSError, ValueError, requests.RequestException) as error:
        fault = _first_fault(error) if isinstance(error, ValidationError) else str(error)
        raise InvalidResults(f"{source}: {fault}") from error
    return ServiceCurve(
        decode=_rising(said.decode_ms),
        prompt_token=tuple(_by_whole_rows(said.prefill_ms_per_token)),
        source="speed",
        speed_error=said.speed_error,
        chunk_tokens=said.chunk_tokens,
        budget_tokens=said.budget_tokens,
        measured_at=said.measured_at,
    )


def _of_model(said: Any, model: str) -> Any:
    """Returns the costs of one model, of what a server says by their names. Raises ValueError."""
    if not isinstance(said, dict) or "decode_ms" in said:
        return said
    if not model and len(said) == 1:
        return next(iter(said.values()))
    if model not in said:
        raise ValueError(f"has no model {model!r}; add #NAME with one of {', '.join(said)}")
    return said[model]


def _by_whole_rows(rows: Iterable[PromptRow]) -> list[CurvePoint]:
    """Points at whole numbers of rows, from 1: those that fall together weigh by their errors."""
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


def fit_closed_loops(points: Iterable[LoadPoint], places: int | None) -> ServiceCurve | None:
    """Returns the curve of the closed loops of no more users than places; None for fewer than
    three different numbers of users. Raises Unfit where no step takes any time.

    With prompts of lengths that differ, overhead and prompts' work are told apart; with equal ones
    the overhead counts as work.
    """
    return fit_loops(closed_loops(points, places))


def closed_loops(points: Iterable[LoadPoint], places: int | None) -> list["Loop"]:
    """Returns the closed loops of no more users than places, in the same order."""
    loops = (_loop(point) for point in points)
    return [loop for loop in loops if loop is not None and loop.users <= (places or math.inf)]


def fit_loops(loops: Sequence["Loop"]) -> ServiceCurve | None:
    """As `fit_closed_loops`."""
    users = sorted({loop.users for loop in loops})
    if len(users) < MIN_USERS:
        return None
    prompts = [loop.work_tokens for loop in loops]
    tells_overhead = max(prompts) >= DIFFERENT_LENGTHS * max(min(prompts), 1.0)
    rows = [_end_to_end(loop, users, tells_overhead) for loop in loops]
    rows += [_first_token(loop, users, tells_overhead) for loop in loops if loop.users == 1]
    found, errors = _least_squares(*map(np.array, zip(*rows, strict=True)))
    steps = zip(users, found[2:].tolist(), errors[2:].tolist(), strict=True)
    if found[2:].max() <= 0:
        raise Unfit("serviceCurve: answers took no longer than their prompts; measure longer ones")
    return ServiceCurve(
        decode=_rising([(n, max(ms, LEAST_MS), error) for n, ms, error in steps]),
        prompt_token=(CurvePoint(1, max(float(found[0]), LEAST_MS), float(errors[0])),),
        source="closed loops",
        overhead_ms=float(found[1]) if tells_overhead else None,
        speed_error=_drift(loops),
    )


@dataclass(frozen=True, slots=True)
class Loop:
    """Means of one closed loop, in ms, with their standard errors. `at_s`: its middle, on the
    clock of the run."""

    at_s: float
    users: int
    work_tokens: float  # of a prompt: with its last token a row decodes
    output_tokens: float
    e2e_ms: float
    e2e_error_ms: float
    ttft_ms: float
    ttft_error_ms: float

    @property
    def rate_per_s(self) -> float:
        """Departures, by Little's law: users who end and begin together make any window wrong."""
        return 1000 * self.users / self.e2e_ms

    def met(self, slowness: float, error: float) -> "Loop":
        """Returns what it would have been at slowness 1, had it met this one, known to `error`."""
        e2e_ms, ttft_ms = self.e2e_ms / slowness, self.ttft_ms / slowness
        return replace(
            self,
            e2e_ms=e2e_ms,
            e2e_error_ms=math.hypot(self.e2e_error_ms / slowness, error * e2e_ms),
            ttft_ms=ttft_ms,
            ttft_error_ms=math.hypot(self.ttft_error_ms / slowness, error * ttft_ms),
        )


def _loop(point: LoadPoint) -> Loop | None:
    """None for what is no closed loop. Not counted are the last requests, one for each user: as
    they end, no others follow, and steps have fewer rows."""
    users = point.load.concurrency
    if users is None or point.e2e is None:
        return None
    steady = succeeded(point.measured[:-users]) or point.measured
    in_tokens, out_tokens = mean_tokens(steady)
    means = []
    for metric in (E2E, TTFT):
        interval = mean_within_run(metric.values(steady))
        half = interval.high - interval.value
        error = half / IN_95 if np.isfinite(half) else 0.0
        means += [interval.value, max(error, LEAST_ERROR * interval.value)]
    at_s = (point.from_s + point.to_s) / 2
    return Loop(at_s, users, max(in_tokens - 1, 0.0), out_tokens, *means)


Equation = tuple[FloatArray, float]  # coefficients of c, overhead and every a(n), and the left side


def _end_to_end(loop: Loop, users: Sequence[int], tells_overhead: bool) -> Equation:
    unknowns = np.zeros(2 + len(users))
    unknowns[0] = loop.users * loop.work_tokens
    unknowns[1] = tells_overhead
    unknowns[2 + users.index(loop.users)] = loop.output_tokens
    return unknowns / loop.e2e_error_ms, loop.e2e_ms / loop.e2e_error_ms


def _first_token(loop: Loop, users: Sequence[int], tells_overhead: bool) -> Equation:
    unknowns = np.zeros(2 + len(users))
    unknowns[:3] = loop.work_tokens, tells_overhead, 1.0
    return unknowns / loop.ttft_error_ms, loop.ttft_ms / loop.ttft_error_ms


def _least_squares(design: FloatArray, left: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the solution, none of it below 0, and its standard errors: those of the equations, or
    of what they leave unexplained where that is more."""
    found, residual = nnls(design, left)
    freedom = max(len(left) - int(np.count_nonzero(found)), 1)
    scale = max(float(residual) ** 2 / freedom, 1.0)
    covariance = scale * np.linalg.pinv(design.T @ design)
    return found, np.sqrt(np.maximum(np.diag(covariance), 0.0))


def _drift(loops: Sequence[Loop]) -> float:
    """Returns the relative scatter of rows of the same load beyond that within them: the machine's
    own speed; 0 without such rows."""
    of_load: defaultdict[tuple[int, int, int], list[Loop]] = defaultdict(list)
    for loop in loops:
        shape = round(loop.work_tokens), round(loop.output_tokens)
        of_load[(loop.users, *shape)].append(loop)
    excess = []
    for rows in of_load.values():
        if len(rows) > 1:
            e2e_ms = np.array([row.e2e_ms for row in rows])
            within = float(np.mean([row.e2e_error_ms**2 for row in rows]))
            excess.append((float(e2e_ms.var(ddof=1)) - within) / float(e2e_ms.mean()) ** 2)
    return max(fmean(excess), 0.0) ** 0.5 if excess else 0.0


def _rising(rows: Iterable[tuple[int, float, float]]) -> tuple[CurvePoint, ...]:
    """Returns points by rows, in place of any that fall the nearest that do not."""
    points = sorted(rows)
    weights = [1 / max(error, LEAST_ERROR * ms) ** 2 for _, ms, error in points]
    rising = isotonic_regression([ms for _, ms, _ in points], weights=weights).x
    return tuple(
        CurvePoint(n, float(ms), error) for (n, _, error), ms in zip(points, rising, strict=True)
    )


def _as_json(points: Iterable[CurvePoint]) -> list[Mapping[str, float]]:
    return [{"rows": p.rows, "ms": p.ms, "standardError": p.standard_error} for p in points]


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(step) for step in fault["loc"])
    return f"{path}: {fault['msg']}"
