"""Finds the service curve of any server from closed loops.

Symbols: n users, each with w prompt tokens before the last and o output tokens; m requests in
service, which are all n where answers are equal, as users begin together then; a(n), the time of a
step of n users' rows; c(n), the time that a prompt token adds to it. Then

    end to end = overhead + m c(n) w + o a(n),    TTFT of one user = overhead + c(1) w + a(1).

Loops with equally many users and prompts of different lengths show how c depends on the rows; it is
taken as linear between a few numbers of users. Pure: any thread.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.intervals import mean_within_run
from benchmarking.analysis.latency import (
    E2E,
    TTFT,
    input_tokens,
    itl_s,
    mean_tokens,
    succeeded,
    ttft_s,
)
from benchmarking.analysis.service_curve import (
    LEAST_ERROR,
    LEAST_MS,
    CurvePoint,
    ServiceCurve,
    rising,
)
from benchmarking.errors import Unfit
from benchmarking.records import RequestRecord
from common.numerics import FloatArray, scipy

MIN_USERS = 3  # a curve needs this many different numbers of users
DIFFERENT_LENGTHS = 1.5  # least longest / shortest prompts that tell overhead from prompts' work
IN_95 = 1.96


@dataclass(frozen=True, slots=True)
class Loop:
    """Means of one closed loop, with their standard errors. `from_s` and `to_s` are on the run's
    clock. `in_service` is how many requests are in service, on average, while one of them is."""

    from_s: float
    to_s: float
    users: int
    work_tokens: float  # prompt tokens without the last one, with which decoding begins
    output_tokens: float
    e2e_ms: float
    e2e_error_ms: float
    ttft_ms: float
    ttft_error_ms: float
    in_service: float


def fit_closed_loops(points: Iterable[LoadPoint], places: int | None) -> ServiceCurve | None:
    """Returns the curve of closed loops with no more users than places, for requests of their mean
    lengths; None for fewer than three numbers of users. Raises Unfit if steps take no time.

    Prompts of different lengths tell overhead and prompts' work apart. With equal prompts, the
    overhead counts as work.
    """
    loops = closed_loops(points, places)
    curve = fit_loops(loops, has_overhead=prompts_differ(loops))
    if curve is None:
        return None
    return curve.of_requests(
        fmean(loop.work_tokens for loop in loops), fmean(loop.output_tokens for loop in loops)
    )


def closed_loops(points: Iterable[LoadPoint], places: int | None) -> list[Loop]:
    """Returns the closed loops with no more users than places, in the order of the points. Their
    answers are taken as equally long."""
    loops = (_loop(point) for point in points)
    return [loop for loop in loops if loop is not None and loop.users <= (places or math.inf)]


def fit_loops(loops: Sequence[Loop], has_overhead: bool) -> ServiceCurve | None:
    """Returns the curve of loops, not yet for certain lengths. Unknowns are c at its knots, a at
    all numbers of users and, if `has_overhead`, the overhead, which otherwise is 0."""
    users, knots = sorted({loop.users for loop in loops}), _knots(loops)
    if len(users) < MIN_USERS:
        return None

    def equation(
        loop: Loop, prompt_tokens: float, steps: float, ms: float, error_ms: float
    ) -> tuple[FloatArray, float]:
        """Returns the coefficients of the unknowns and the value of their sum, both in units of the
        error; c is linear between its knots."""
        c = [np.interp(loop.users, knots, each) for each in np.eye(len(knots))]
        a = [steps * (each == loop.users) for each in users]
        coefficients = np.array([has_overhead, *(prompt_tokens * each for each in c), *a])
        return coefficients / error_ms, ms / error_ms

    equations = [
        equation(x, x.in_service * x.work_tokens, x.output_tokens, x.e2e_ms, x.e2e_error_ms)
        for x in loops
    ]
    equations += [
        equation(x, x.work_tokens, 1.0, x.ttft_ms, x.ttft_error_ms) for x in loops if x.users == 1
    ]
    found, errors = least_squares(*map(np.array, zip(*equations, strict=True)))
    values = zip([*knots, *users], found[1:].tolist(), errors[1:].tolist(), strict=True)
    points = tuple(CurvePoint(n, max(ms, LEAST_MS), error) for n, ms, error in values)
    prompts, decode = points[: len(knots)], points[len(knots) :]
    if max(point.ms for point in decode) <= LEAST_MS:
        raise Unfit("serviceCurve: answers took no longer than their prompts; measure longer ones")
    return ServiceCurve(
        decode=rising((p.rows, p.ms, p.standard_error) for p in decode),
        prompt_token=prompts,
        source="closed loops",
        overhead=(CurvePoint(1, float(found[0]), float(errors[0])),) if has_overhead else None,
        speed_error=drift(loops),
    )


def _loop(point: LoadPoint) -> Loop | None:
    """Returns the means of a closed loop; None for other loads and for prompts that nobody counted.
    Each user's last request is left out, because steps have fewer rows when no others follow. Each
    latency is scaled to an answer of mean length, so that different lengths do not count as errors.
    """
    users = point.load.concurrency
    if users is None or point.e2e is None:
        return None
    steady = succeeded(point.measured[:-users]) or succeeded(point.measured)
    if not any(map(input_tokens, steady)):
        return None
    in_tokens, out_tokens = mean_tokens(steady)
    even_ms = [1000 * (first_s + (out_tokens - 1) * gap_s) for first_s, gap_s in _paces(steady)]
    e2e_ms, e2e_error_ms = _mean(even_ms or E2E.values(steady))
    ttft_ms, ttft_error_ms = _mean(TTFT.values(steady))
    return Loop(
        from_s=point.from_s,
        to_s=point.to_s,
        users=users,
        work_tokens=max(in_tokens - 1, 0.0),
        output_tokens=out_tokens,
        e2e_ms=e2e_ms,
        e2e_error_ms=e2e_error_ms,
        ttft_ms=ttft_ms,
        ttft_error_ms=ttft_error_ms,
        in_service=users,
    )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Returns a mean and its standard error."""
    interval = mean_within_run(values)
    half = interval.high - interval.value
    error = half / IN_95 if np.isfinite(half) else 0.0
    return interval.value, max(error, LEAST_ERROR * interval.value)


def _paces(records: Iterable[RequestRecord]) -> Iterator[tuple[float, float]]:
    """Yields TTFT and ITL, in seconds, of each request that has both."""
    for record in records:
        first_s, gap_s = ttft_s(record), itl_s(record)
        if first_s is not None and gap_s is not None:
            yield first_s, gap_s


def prompts_differ(loops: Sequence[Loop]) -> bool:
    """Returns whether prompts differ enough in length."""
    prompts = [loop.work_tokens for loop in loops]
    return max(prompts, default=0.0) >= DIFFERENT_LENGTHS * max(min(prompts, default=0.0), 1.0)


def _knots(loops: Sequence[Loop]) -> Sequence[int]:
    """Returns the numbers of users at which c is an unknown: the least, middle and most of those
    whose prompts differ in length, as one alone is uncertain. If none do, c is constant."""
    by_users: defaultdict[int, list[Loop]] = defaultdict(list)
    for loop in loops:
        by_users[loop.users].append(loop)
    users = sorted(users for users, equal in by_users.items() if prompts_differ(equal)) or [1]
    return sorted({users[0], users[len(users) // 2], users[-1]})


def least_squares(design: FloatArray, left: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the solution, which is not negative, and its standard errors. They are larger if the
    equations leave more unexplained than their own errors."""
    found, residual = scipy.optimize.nnls(design, left)
    freedom = max(len(left) - int(np.count_nonzero(found)), 1)
    scale = max(float(residual) ** 2 / freedom, 1.0)
    covariance = scale * np.linalg.pinv(design.T @ design)
    return found, np.sqrt(np.maximum(np.diag(covariance), 0.0))


def drift(loops: Sequence[Loop]) -> float:
    """Returns the relative scatter between rows of equal load, beyond the scatter within rows; at
    most 1, the largest that the optimizer takes."""
    by_load: defaultdict[tuple[int, int], list[Loop]] = defaultdict(list)
    for loop in loops:
        by_load[(loop.users, round(loop.work_tokens))].append(loop)
    excess = []
    for rows in by_load.values():
        if len(rows) > 1:
            token_ms = np.array([row.e2e_ms / row.output_tokens for row in rows])
            errors = [(row.e2e_error_ms / row.e2e_ms) ** 2 for row in rows]
            relative = float(token_ms.var(ddof=1)) / float(token_ms.mean()) ** 2
            excess.append(relative - fmean(errors))
    return min(max(fmean(excess), 0.0) ** 0.5, 1.0) if excess else 0.0
