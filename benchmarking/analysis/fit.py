"""Fits the linear speeds of a replica to measurements, in the form that the optimizer takes:

    ITL = alpha + beta n        prefill = gamma + delta k n

with n requests in service and k prompt tokens; times are in ms. The regression is robust: residuals
are relative, and a soft L1 loss (scipy's `least_squares`) bounds the pull of a disturbed point,
however far off it is. Pure: any thread.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarking.analysis.closed_loops import fit_closed_loops
from benchmarking.analysis.curve import load_points_by_row
from benchmarking.analysis.fit_points import Places, Point, fit_points, places_of
from benchmarking.analysis.intervals import Interval, students_t
from benchmarking.analysis.service_curve import ServiceCurve
from benchmarking.errors import Unfit
from benchmarking.records import Run
from common.numerics import FloatArray, scipy

FIRST_SCALE = 0.1  # relative residual above which points count less, until the scale is known
MIN_SCALE = 1e-4
MAD_TO_SIGMA = 1.4826  # ratio of sigma to MAD in a normal distribution
MIN_POINTS = 4
POOR_FIT = 0.15  # a fit is poor if half of the ITL points have larger relative residuals


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope x, neither below 0; `residuals` are relative, (fitted - y) / y."""

    intercept: Interval
    slope: Interval
    r_squared: float
    x: tuple[float, ...]
    y: tuple[float, ...]
    residuals: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.x) == len(self.y) == len(self.residuals):
            raise ValueError("x, y and residuals: give as many of each, and one at least")

    def at(self, x: float) -> float:
        return self.intercept.value + self.slope.value * x


@dataclass(frozen=True, slots=True)
class Validity:
    """The ranges that were measured. Outside of them the lines are extrapolated."""

    concurrency: tuple[float, float]
    input_tokens: tuple[float, float]
    output_tokens: tuple[float, float]
    rate_per_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted speeds. `max_batch_size` comes from `batch_bound`: a `Places.source`, or itl."""

    decode: Line  # ITL in ms over n
    prefill: Line  # TTFT without queueing in ms over k n
    validity: Validity
    max_batch_size: int
    batch_bound: str
    at_tokens: int
    curve: ServiceCurve | None = None  # used in place of both lines

    def perf_data(self, model: str, accelerator: str) -> dict[str, Any]:
        """Returns the ModelAcceleratorPerfData that the optimizer's `/setModels` reads."""
        curve = {} if self.curve is None else {"serviceCurve": self.curve.as_json()}
        return curve | {
            "name": model,
            "acc": accelerator,
            "accCount": 1,
            "maxBatchSize": self.max_batch_size,
            "atTokens": self.at_tokens,
            "decodeParms": {"alpha": self.decode.intercept.value, "beta": self.decode.slope.value},
            "prefillParms": {
                "gamma": self.prefill.intercept.value,
                "delta": self.prefill.slope.value,
            },
        }

    def lines(self) -> list[str]:
        """Returns the fit as text for people."""
        decode, prefill, valid = self.decode, self.prefill, self.validity
        lines = [
            f"alpha {decode.intercept} ms, beta {decode.slope} ms, R² {decode.r_squared:.3f}",
            f"gamma {prefill.intercept} ms, delta {prefill.slope} ms, R² {prefill.r_squared:.3f}",
            f"maxBatchSize {self.max_batch_size} (from {self.batch_bound}), "
            f"atTokens {self.at_tokens}",
            f"measured at {_span(valid.concurrency)} requests in service, "
            f"{_span(valid.input_tokens)} prompt and {_span(valid.output_tokens)} output tokens, "
            f"{_span(valid.rate_per_s)} requests/s",
        ]
        if self.curve is not None:
            lines.append(self.curve.line())
        off = float(np.median(np.abs(decode.residuals)))
        if off > POOR_FIT:
            lines.append(
                f"half of the ITL points are more than {off:.0%} off the line: measure longer, "
                "with more different loads, or on a machine that does nothing else"
            )
        return lines


def fit_run(
    run: Run,
    model: str,
    slo_itl_ms: float | None = None,
    left_out: Collection[int] = (),
    max_batch_size: int | None = None,
    speed: ServiceCurve | None = None,
) -> Fit:
    """Returns the fit to the rows of `run` for `model`; only to its open loops, if it has any,
    because in a closed loop requests of one length end and begin together, so that each prompt
    waits for the others.

    Rows `left_out` are not used, so that they can check the fit. `max_batch_size` overrides the
    server's report. `speed` is the server's report on its steps; without it, the curve comes from
    closed loops, if there are enough. Raises Unfit.
    """
    rows = {number for number, row in enumerate(run.rows) if row.load.model == model}
    rows -= set(left_out)
    open_rows = {number for number in rows if run.rows[number].load.qps is not None}
    places = places_of(run, max_batch_size)
    points = fit_points(run, places.count if places else None)
    points = [point for point in points if point.row in (open_rows or rows)]
    curve = speed or fit_closed_loops(
        [point for row, point in load_points_by_row(run).items() if row in rows],
        places.count if places else None,
    )
    found = fit(points, places, slo_itl_ms)
    if curve is None:
        return found
    measured = _range([float(point.rows) for point in curve.decode])
    return replace(found, curve=curve, validity=replace(found.validity, concurrency=measured))


def fit(points: Sequence[Point], places: Places | None, slo_itl_ms: float | None = None) -> Fit:
    """Returns both lines, and the largest batch of a replica.

    The batch is the smaller of the server's places and the largest n that keeps ITL within
    `slo_itl_ms` ("itl"). Raises Unfit, also if neither is known: the largest n measured shows the
    load that was sent, not what the server can take.
    """
    prefilled = [
        (point.input_tokens * point.prefill_concurrency, point.ttft_ms)
        for point in points
        if point.prefill_concurrency is not None and point.ttft_ms is not None
    ]
    decode = robust_line(
        [point.concurrency for point in points],
        [point.itl_ms for point in points],
        "ITL over concurrency",
    )
    prefill = robust_line(
        [x for x, _ in prefilled], [y for _, y in prefilled], "prefill over tokens x concurrency"
    )
    validity = Validity(
        concurrency=_range([point.concurrency for point in points]),
        input_tokens=_range([point.input_tokens for point in points]),
        output_tokens=_range([point.output_tokens for point in points]),
        rate_per_s=_range([point.rate_per_s for point in points]),
    )
    batch, bound = _max_batch(decode, places, slo_itl_ms)
    at_tokens = round(float(np.mean([point.output_tokens for point in points])))
    return Fit(decode, prefill, validity, batch, bound, at_tokens)


def robust_line(x: Sequence[float], y: Sequence[float], what: str) -> Line:
    """Returns a line. Raises Unfit, naming `what`, for fewer than 4 points or a single x."""
    if len(x) < MIN_POINTS or np.ptp(x) < 1e-9 * np.max(x):
        raise Unfit(
            f"{what}: {len(x)} points at {len(set(x))} places do not make a line; measure at least "
            f"{MIN_POINTS} with different batch sizes."
        )
    measured = np.asarray(y, dtype=np.float64)
    design = np.stack([np.ones(len(x)), np.asarray(x, dtype=np.float64)], axis=1)
    relative = design / measured[:, None]  # relative @ parameters - 1 = (fitted - y) / y
    scale = FIRST_SCALE
    for _ in range(3):
        parameters = _least_soft_l1(relative, scale)
        residuals = relative @ parameters - 1
        scale = max(MAD_TO_SIGMA * float(np.median(np.abs(residuals))), MIN_SCALE)
    half = _half_widths(relative, residuals, scale)
    intervals = [
        Interval(float(value), max(0.0, float(value - width)), float(value + width))
        for value, width in zip(parameters, half, strict=True)
    ]
    spread = float(np.sum((measured - measured.mean()) ** 2))
    unexplained = float(np.sum((design @ parameters - measured) ** 2))
    return Line(
        intercept=intervals[0],
        slope=intervals[1],
        r_squared=1 - unexplained / spread if spread > 0 else 1.0,
        x=tuple(float(value) for value in x),
        y=tuple(float(value) for value in y),
        residuals=tuple(float(value) for value in residuals),
    )


def _least_soft_l1(relative: FloatArray, scale: float) -> FloatArray:
    def residuals(parameters: FloatArray) -> FloatArray:
        return np.asarray(relative @ parameters - 1, dtype=np.float64)

    def jacobian(_: FloatArray) -> FloatArray:
        return relative

    start, *_ = np.linalg.lstsq(relative, np.ones(len(relative)), rcond=None)
    found = scipy.optimize.least_squares(
        residuals,
        np.maximum(start, 1e-9),
        jac=jacobian,
        bounds=(0.0, np.inf),
        x_scale=np.maximum(start, 1e-3),
        loss="soft_l1",
        f_scale=scale,
    )
    return np.asarray(found.x, dtype=np.float64)


def _half_widths(relative: FloatArray, residuals: FloatArray, scale: float) -> FloatArray:
    """Returns half widths of the 95 % intervals, from the covariance of an M-estimator (Huber,
    Robust Statistics, 1981, section 7.6) with the influence of the soft L1 loss, psi(r) = r /
    sqrt(1 + (r / scale)^2)."""
    shrink = 1 + (residuals / scale) ** 2
    freedom = len(residuals) - 2
    influence = float(np.sum(residuals**2 / shrink)) / freedom
    slope = float(np.mean(shrink**-1.5))
    covariance = influence / slope**2 * np.linalg.inv(relative.T @ relative)
    return np.asarray(students_t(freedom) * np.sqrt(np.diag(covariance)), dtype=np.float64)


def _span(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3g} to {bounds[1]:.3g}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _max_batch(decode: Line, places: Places | None, slo_itl_ms: float | None) -> tuple[int, str]:
    bounds = []
    if places is not None:
        bounds.append((places.count, places.source))
    if slo_itl_ms is not None and decode.slope.value > 0:
        room_ms = slo_itl_ms - decode.intercept.value
        bounds.append((max(1, int(room_ms / decode.slope.value)), "itl"))
    if not bounds:
        raise Unfit(
            "maxBatchSize: the server did not say how many requests it serves at once, and no row "
            "had so many in flight that others waited; give it as --max-batch-size"
        )
    return min(bounds)
