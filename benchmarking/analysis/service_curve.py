"""A service curve: what steps take, as the optimizer's `serviceCurve` has it.

A step of n rows that decode and p prompt tokens takes a(n) + c(n) p ms. A server may say its step
costs itself (`read_speed`); of any other they follow from closed loops (`fit_closed_loops`): of n
users with k prompt and o output tokens, prompts' work and steps fill the time of all n, so that

    end to end = overhead + n c (k - 1) + o a(n),      TTFT of one user = overhead + c k + a(1).

Pure but for the URL that `read_speed` may be given: any thread.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import requests
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.optimize import isotonic_regression, nnls

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.latency import mean_tokens
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
    Annotated[float, Field(ge=LEAST_MS, le=1e9)],
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
            points.append(CurvePoint(number, *each[0][1:]))
            continue
        weights = [1 / max(error, LEAST_ERROR * ms) ** 2 for _, ms, error in each]
        pairs = zip(weights, each, strict=True)
        mean_ms = sum(weight * ms for weight, (_, ms, _) in pairs) / sum(weights)
        points.append(CurvePoint(number, mean_ms, sum(weights) ** -0.5))
    return points


def fit_closed_loops(points: Iterable[LoadPoint], places: int | None) -> ServiceCurve | None:
    """Returns the curve of the closed loops of no more users than places; None for fewer than
    three different numbers of users. Raises Unfit where no step takes any time.

    With prompts of lengths that differ, overhead and prompts' work are told apart; with equal ones
    the overhead counts as work.
    """
    loops = [loop for point in points if (loop := _loop(point)) and loop.users <= (places or 1e9)]
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
class _Loop:
    """Means of one closed loop, in ms, with their standard errors."""

    users: int
    work_tokens: float  # of a prompt: with its last token a row decodes
    output_tokens: float
    e2e_ms: float
    e2e_error_ms: float
    ttft_ms: float
    ttft_error_ms: float


def _loop(point: LoadPoint) -> _Loop | None:
    if point.load.concurrency is None or point.e2e is None or point.ttft is None:
        return None
    in_tokens, out_tokens = mean_tokens(point.measured)
    means = []
    for interval in (point.e2e.mean, point.ttft.mean):
        half = interval.high - interval.value
        error = half / IN_95 if np.isfinite(half) else 0.0
        means += [interval.value, max(error, LEAST_ERROR * interval.value)]
    return _Loop(point.load.concurrency, max(in_tokens - 1, 0.0), out_tokens, *means)


Equation = tuple[FloatArray, float]  # coefficients of c, overhead and every a(n), and the left side


def _end_to_end(loop: _Loop, users: Sequence[int], tells_overhead: bool) -> Equation:
    unknowns = np.zeros(2 + len(users))
    unknowns[0] = loop.users * loop.work_tokens
    unknowns[1] = tells_overhead
    unknowns[2 + users.index(loop.users)] = loop.output_tokens
    return unknowns / loop.e2e_error_ms, loop.e2e_ms / loop.e2e_error_ms


def _first_token(loop: _Loop, users: Sequence[int], tells_overhead: bool) -> Equation:
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


def _drift(loops: Sequence[_Loop]) -> float:
    """Returns the relative scatter of rows of the same load beyond that within them: the machine's
    own speed; 0 without such rows."""
    of_load: defaultdict[tuple[int, int, int], list[_Loop]] = defaultdict(list)
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
