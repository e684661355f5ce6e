"""Finds how fast a model is on cards: measured by the caller, fitted to published figures, or
estimated.

The result is a service curve for the optimizer's model. Pure: any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optimizer.catalogue.calibration import Calibration, PairFit
from optimizer.catalogue.roofline import PARTS, Machine
from optimizer.spec import CurvePoint, OverheadPoint, PerfData, ServiceCurve

MOST_ROWS = 256  # default number of rows of engines
CHUNK_TOKENS = 2048  # default prompt tokens in a step of engines
LEAST_MS = 1e-6  # the shortest step
UNSEEN = 0.9  # a factor whose error exceeds this share of an estimate's counts as not measured

Kind = Literal["measured", "fitted", "estimated"]


@dataclass(frozen=True, slots=True)
class Speed:
    """`error` is the relative standard error of all times. `sources` and `engines` belong to the
    published figures."""

    machine: Machine
    perf: PerfData
    kind: Kind
    error: float
    rows: int
    sources: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    points: int = 0
    prompts_are_estimated: bool = False

    def steps(self) -> Iterator[tuple[int, float, float]]:
        """Yields rows, the time of a step of them, and of an additional prompt token in it."""
        curve = self.perf.service_curve
        for rows in _rows_up_to(self.rows):
            if curve is not None:
                measured_rows = [point.rows for point in curve.decode_ms]
                step_ms = float(
                    np.interp(rows, measured_rows, [point.ms for point in curve.decode_ms])
                )
                token_ms = curve.prompt_token_ms[0].ms
            else:
                decode = self.perf.iteration_parms or self.perf.decode_parms
                step_ms, token_ms = decode.alpha + decode.beta * rows, self.perf.prefill_parms.delta
            yield rows, max(step_ms, LEAST_MS), token_ms


def published_speed(
    calibration: Calibration, machine: Machine, in_tokens: int, out_tokens: int, name: str
) -> Speed | None:
    """Returns the speed for requests of one shape; None if not even one of them fits into memory.
    `name` is the accelerator's name in the answer."""
    rows = min(machine.rows_that_fit(in_tokens + out_tokens), MOST_ROWS)
    if rows < 1:
        return None
    model = machine.model
    fit = calibration.fit_of((model.shape, machine.accelerator.name, machine.precision))
    curve = _curve(calibration, fit, machine, rows, in_tokens + out_tokens / 2)
    perf = PerfData(
        name=model.name, acc=name, max_batch_size=rows, at_tokens=out_tokens, service_curve=curve
    )
    estimated = calibration.error_of(model)
    if fit is None:
        return Speed(machine, perf, "estimated", estimated, rows)
    is_unseen = fit.prompts_error > UNSEEN * estimated
    error = estimated if is_unseen else fit.error_beside(estimated)
    origin = (tuple(fit.sources), tuple(fit.engines), fit.num_points, is_unseen)
    return Speed(machine, perf, "fitted", error, rows, *origin)


def _curve(
    calibration: Calibration, fit: PairFit | None, machine: Machine, rows: int, context: float
) -> ServiceCurve:
    efficiency = np.array(calibration.efficiency)
    steps, prompts = (fit.steps, fit.prompts) if fit else (1.0, 1.0)
    errors = (fit.steps_error, fit.prompts_error) if fit else (0.0, 0.0)
    decode = []
    for count in _rows_up_to(rows):
        ms = float(machine.step(count, context) @ efficiency) * steps + machine.link_ms(count)
        decode.append(CurvePoint(rows=count, ms=ms, standard_error=ms * errors[0]))
    token_ms = float(machine.prompt_token() @ efficiency) * prompts + machine.link_ms(1)
    return ServiceCurve(
        decode_ms=decode,
        prompt_token_ms=[CurvePoint(rows=1, ms=token_ms, standard_error=token_ms * errors[1])],
        chunk_tokens=CHUNK_TOKENS,
        overhead_ms=[OverheadPoint(rows=1, ms=float(efficiency[PARTS.index("request")]))],
        speed_error=fit.residual if fit else calibration.error_of(machine.model),
    )


def _rows_up_to(rows: int) -> list[int]:
    powers = [2**power for power in range(rows.bit_length()) if 2**power < rows]
    return [*powers, rows]


def measured_speed(
    machine: Machine, perf: PerfData, in_tokens: int, out_tokens: int, name: str
) -> Speed:
    """Returns the speed that the caller measured, instead of published ones: for the batch it
    gives, else for as many rows as were measured and fit."""
    curve = perf.service_curve
    most = curve.decode_ms[-1].rows if curve else MOST_ROWS
    rows = perf.max_batch_size or min(machine.rows_that_fit(in_tokens + out_tokens), most)
    named = {"name": machine.model.name, "acc": name, "acc_count": 0}
    perf = perf.model_copy(update=named | {"max_batch_size": max(rows, 1), "at_tokens": out_tokens})
    return Speed(machine, perf, "measured", _stated_error(perf), max(rows, 1))


def _stated_error(perf: PerfData) -> float:
    """Returns the relative error that measured data states; 0 if it states none."""
    if perf.service_curve is not None:
        first = perf.service_curve.decode_ms[0]
        return float(np.hypot(perf.service_curve.speed_error, first.standard_error / first.ms))
    decode = perf.decode_parms
    return (decode.alpha_error or 0.0) / decode.alpha if decode.alpha else 0.0
