"""The roofline's parts made to fit published measurements, and how far off it then is.

A part is never shorter than the datasheet says. Each pair of model and accelerator weighs the same,
however much was published of it. How far off an estimate is comes from leaving each pair out in
turn, fitting the others and predicting it. A pair with measurements of its own gets two factors,
on steps and on prompts, drawn towards 1 as far as estimates of other pairs are off.

Pure: any thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from common.numerics import FloatArray, scipy
from lab.catalogue.observations import Observation, Point
from optimizer.catalogue.calibration import Calibration, LeftOut, PairFit, PairKey
from optimizer.catalogue.facts import Facts
from optimizer.catalogue.roofline import IN_MS, PARTS, Machine

MIN_POINTS = 3  # points that a pair needs to count for the error of estimates
MOST_ROWS = 2048  # where a measurement ran as many as fit
POINT_ERROR = 0.1  # relative, of a published measurement: other lengths, ramps, another version
LEAST_ERROR = 0.05  # least error of a fitted pair: another day, another release
KIN = (("fp4", "dense"), ("experts", "dense"))

Key = TypeVar("Key")

Pair = tuple[str, str]  # model and accelerator


@dataclass(frozen=True, slots=True)
class Equation:
    """A measured time as parts of steps and of prompts; `known_ms` are not fitted."""

    key: PairKey
    steps: FloatArray
    prompts: FloatArray
    known_ms: float
    ms: float

    @property
    def pair(self) -> Pair:
        return self.key[:2]

    def predicted_ms(self, efficiency: FloatArray) -> float:
        return float((self.steps + self.prompts) @ efficiency) + self.known_ms


def calibrate(facts: Facts, observations: Sequence[Observation]) -> Calibration:
    """Returns the roofline fitted to all measurements."""
    equations = [each for seen in observations for each in _equations(facts, seen)]
    efficiency = _fitted(equations)
    left_out = [_left_out(equations, pair) for pair in _groups(equations, lambda e: e.pair)]
    dense_error, experts_error = (
        _root_mean_square(
            [e.error for e in left_out if _counts(e) and _has_experts(facts, e) == has]
        )
        for has in (False, True)
    )
    bare = Calibration(
        efficiency=efficiency.tolist(),
        dense_error=dense_error,
        experts_error=experts_error,
        left_out=left_out,
        fitted=[],
    )
    by_key: dict[PairKey, list[Observation]] = {}
    for seen in observations:
        key = (facts.models[seen.model].shape, seen.accelerator, seen.precision)
        by_key.setdefault(key, []).append(seen)
    groups = _groups(equations, lambda e: e.key)
    fits = [_pair_fit(facts, key, groups[key], seen, bare) for key, seen in by_key.items()]
    return bare.model_copy(update={"fitted": fits})


def _counts(left_out: LeftOut) -> bool:
    """False where too little was published to speak of batches and prompts too."""
    return left_out.num_points >= MIN_POINTS


def _has_experts(facts: Facts, left_out: LeftOut) -> bool:
    return facts.models[left_out.model].experts is not None


def _equations(facts: Facts, seen: Observation) -> Iterable[Equation]:
    model, accelerator = facts.models[seen.model], facts.accelerators[seen.accelerator]
    machine = Machine(model, accelerator, seen.cards, seen.precision, seen.cache_bits)
    for point in seen.points:
        yield _equation(machine, point)


def _equation(machine: Machine, point: Point) -> Equation:
    """Rows in a closed loop finish at the rate at which they come: for each token that one of them
    generates, the others' prompts take their share of in / out tokens."""
    context = point.in_tokens + point.out_tokens / 2
    rows = point.rows or min(machine.rows_that_fit(context), MOST_ROWS)
    step = machine.step(rows, context)
    tokens = rows * point.in_tokens / point.out_tokens
    if point.itl_ms is not None:
        ms, tokens = point.itl_ms, (rows - 1) * point.in_tokens / point.out_tokens
    elif point.output_tokens_per_second is not None:
        ms = 1000 * rows / point.output_tokens_per_second
    elif point.latency_ms is not None:
        ms = point.latency_ms / point.out_tokens
    else:
        assert point.ttft_ms is not None
        ms, tokens = point.ttft_ms, float(point.in_tokens)
        step[PARTS.index("request")] = 1.0
    prompts = tokens * machine.prompt_token()
    key = (machine.model.shape, machine.accelerator.name, machine.precision)
    return Equation(key, step, prompts, machine.link_ms(rows + tokens), ms)


def _fitted(equations: Sequence[Equation]) -> FloatArray:
    """Returns the parts' efficiencies: least squares of relative errors, none below its bound."""
    num_of = {pair: len(each) for pair, each in _groups(equations, lambda e: e.pair).items()}
    weights = np.array([1 / (e.ms * np.sqrt(num_of[e.pair])) for e in equations])
    design = np.array([e.steps + e.prompts for e in equations])
    left = np.array([e.ms - e.known_ms for e in equations])
    bound = np.array([part not in IN_MS for part in PARTS], dtype=np.float64)
    above, _ = scipy.optimize.nnls(design * weights[:, None], (left - design @ bound) * weights)
    efficiency: FloatArray = above + bound
    for part, kin in KIN:  # what nothing was measured of is as its nearest kin
        if not design[:, PARTS.index(part)].any():
            efficiency[PARTS.index(part)] = efficiency[PARTS.index(kin)]
    return efficiency


def _left_out(equations: Sequence[Equation], pair: Pair) -> LeftOut:
    efficiency = _fitted([each for each in equations if each.pair != pair])
    logs = np.array(
        [np.log(e.predicted_ms(efficiency) / e.ms) for e in equations if e.pair == pair]
    )
    return LeftOut(
        model=pair[0],
        accelerator=pair[1],
        num_points=logs.size,
        ratio=float(np.exp(logs.mean())),
        error=_root_mean_square(logs.tolist()),
    )


def _pair_fit(
    facts: Facts,
    key: PairKey,
    own: Sequence[Equation],
    seen: Sequence[Observation],
    bare: Calibration,
) -> PairFit:
    """Two factors by least squares; each counts as seen once, at 1, with the estimates' error."""
    error = bare.error_of(facts.models[key[0]])
    efficiency = np.array(bare.efficiency)
    parts = np.array([(e.steps @ efficiency, e.prompts @ efficiency) for e in own])
    ms = np.array([e.ms for e in own])
    known_ms = np.array([e.known_ms for e in own])
    design = np.vstack([parts / ms[:, None] / POINT_ERROR, np.eye(2) / error])
    left = np.concatenate([(1 - known_ms / ms) / POINT_ERROR, np.ones(2) / error])
    factors, _ = scipy.optimize.nnls(design, left)
    residuals = (parts @ factors + known_ms) / ms - 1
    steps_error, prompts_error = np.sqrt(np.diag(np.linalg.inv(design.T @ design))).tolist()
    return PairFit(
        model=key[0],
        accelerator=key[1],
        precision=key[2],
        steps=float(factors[0]),
        prompts=float(factors[1]),
        steps_error=steps_error,
        prompts_error=prompts_error,
        num_points=len(own),
        residual=max(_root_mean_square(residuals.tolist()), LEAST_ERROR),
        sources=list(dict.fromkeys(o.source for o in seen)),
        engines=list(dict.fromkeys(o.engine for o in seen)),
    )


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _groups(
    equations: Iterable[Equation], key: Callable[[Equation], Key]
) -> dict[Key, list[Equation]]:
    groups: dict[Key, list[Equation]] = {}
    for each in equations:
        groups.setdefault(key(each), []).append(each)
    return groups
