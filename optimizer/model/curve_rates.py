"""Service rates by the number of requests in service, from measured step times alone.

With n requests in service, k prompt tokens and o output tokens each, time divides into prompts'
work and steps of the rows that decode, d of them: a departure takes

    1 / mu = c k + o a(d) / d,        s = d / (mu o) = a(d) + c k mu s

with s the mean step. Rows that do not decode wait for a step to end, or have prompts that take
several steps: n = d + mu s (residual + steps - 1), which has one solution d for every n. This is a
closed network of n requests; by Norton's theorem (Chandy, Herzog, Woo, IBM J. Res. Dev. 19, 1975)
its throughput is the service rate of the open network in state n. Immutable: any thread.
"""

from dataclasses import dataclass

import numpy as np

from common.numerics import BoolArray, FloatArray
from optimizer.model.latency import Columns
from optimizer.model.step_curve import StepCurve

HALVINGS = 45
EVERY_STATE = 512  # states solved one by one; as many larger states are solved, the rest between
SHARED_STEP = 0.5  # a prompt that fills at most this share of a step can share it with another
MOST_BUSY = 0.98  # share of busy time above which formulas for stable queues are not used


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of a request. `work_tokens` excludes the prompt's last token, which decodes."""

    in_tokens: float
    out_tokens: float  # at least 1

    @property
    def work_tokens(self) -> float:
        return max(self.in_tokens - 1, 0.0)


@dataclass(frozen=True, slots=True)
class StateRates(Columns):
    """Mean times in ms with n requests in service, by state n."""

    decoding: FloatArray  # rows that decode
    rate_per_ms: FloatArray  # departures: mu(n)
    step_ms: FloatArray  # a step, with the prompts in it
    decode_ms: FloatArray  # a(d)
    prompt_ms: FloatArray  # c k, of a whole prompt
    steps: FloatArray  # steps that a prompt fills; 0.1 means that ten prompts fit into one step
    residual_ms: FloatArray  # until the running step ends, for a request that comes meanwhile
    first_token_ms: FloatArray  # from a step's start to the first token, without other prompts
    turn_ms: FloatArray  # a prompt's turn, if prompts take turns; 0 if they share steps
    claim_ms: FloatArray  # the replica's time that a prompt with a turn takes

    def at(self, solved_states: FloatArray, states: FloatArray) -> "StateRates":
        """Returns the rates on straight lines between the known states."""
        return StateRates(*(np.interp(states, solved_states, column) for column in self.columns()))


def all_rates(curve: StepCurve, shape: Shape, max_batch: int) -> tuple[StateRates, StateRates]:
    """Returns the rates for 1 to `max_batch` requests in service, and the rates (one entry) with
    all rows taken and requests waiting. A request then gets a row when a step ends, so there is no
    residual."""
    states = np.arange(1.0, max_batch + 1.0)
    solved_states = states
    if max_batch > EVERY_STATE:
        beyond = np.geomspace(EVERY_STATE, max_batch, EVERY_STATE)
        solved_states = np.unique(np.round(np.concatenate((states[:EVERY_STATE], beyond))))
    rows = np.append(solved_states, float(max_batch))
    is_state = np.arange(rows.size) < solved_states.size
    found = _solved(curve, shape, rows, meets_step=is_state)
    rates, saturated = (found.take(np.flatnonzero(part)) for part in (is_state, ~is_state))
    return rates if solved_states is states else rates.at(solved_states, states), saturated


def _solved(curve: StepCurve, shape: Shape, rows: FloatArray, meets_step: BoolArray) -> StateRates:
    """Returns the rates, with d found by bisection."""
    low, high = np.full(rows.shape, 1e-6), rows.copy()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rates, idle_rows = _rates_at(curve, shape, rows, middle, meets_step)
        is_above = middle + idle_rows > rows
        high, low = np.where(is_above, middle, high), np.where(is_above, low, middle)
    rates, _ = _rates_at(curve, shape, rows, low, meets_step)
    return rates


def _rates_at(
    curve: StepCurve, shape: Shape, rows: FloatArray, decoding: FloatArray, meets_step: BoolArray
) -> tuple[StateRates, FloatArray]:
    """Returns the rates if `decoding` rows decode, and the number of rows that then do not."""
    others_share = (rows - 1) / rows
    decode_ms = curve.decode.at(decoding)
    token_ms = curve.prompt_token.at(decoding)
    prompt_ms = token_ms * shape.work_tokens
    rate = 1 / np.maximum(prompt_ms + shape.out_tokens * decode_ms / decoding, 1e-300)
    step_ms = decoding / (rate * shape.out_tokens)

    filled, num_steps, room_tokens = _steps_of_prompt(curve, shape, rows, decoding)
    beside_ms = curve.decode.at(decoding * others_share)  # a step of the other rows alone
    first_token_ms = (num_steps - 1) * beside_ms + decode_ms + prompt_ms
    full_ms = beside_ms + token_ms * np.minimum(room_tokens, shape.work_tokens)
    # Long prompts, no two of which fit into a step, are served in turn (M/D/1), in one or several
    # steps each. Short ones share the next step, which is longer the more of them came during the
    # last: a long step makes the next one long.
    takes_turns, is_long = filled > SHARED_STEP, filled > 1
    long_ms = filled * beside_ms + prompt_ms
    turn_ms = np.where(takes_turns, np.where(is_long, long_ms, full_ms), 0.0)
    claim_ms = np.where(takes_turns, np.where(is_long, long_ms, step_ms), 0.0)
    # Half a step, and more because long steps are met more often: E[s^2] / 2 E[s].
    fed = np.minimum(rate * prompt_ms * others_share, MOST_BUSY)
    spread_ms = prompt_ms * np.minimum(prompt_ms, full_ms) * rate / (1 - fed**2)
    met_ms = np.where(
        is_long,
        decode_ms + np.minimum(rate * long_ms, 1.0) * (full_ms - decode_ms),
        step_ms + spread_ms,
    )
    found = (decoding, rate, step_ms, decode_ms, prompt_ms, filled, met_ms / 2, first_token_ms)
    rates = StateRates(*found, turn_ms, claim_ms)
    before = num_steps - 1 + _waited_ms(rates, others_share) / np.maximum(full_ms, 1e-300)
    residual = np.where(is_long, 0.5, rates.residual_ms / np.maximum(step_ms, 1e-300))
    before = before + np.where(meets_step & (rows > 1), residual, 0.0)
    return rates, rate * step_ms * before


def _waited_ms(rates: StateRates, others_share: FloatArray) -> FloatArray:
    """Returns the mean time that a prompt waits for its turn."""
    busy = np.minimum(rates.rate_per_ms * rates.claim_ms * others_share, 1 - 1e-9)
    waited_ms: FloatArray = rates.turn_ms * busy / (2 * (1 - busy))
    return waited_ms


def _steps_of_prompt(
    curve: StepCurve, shape: Shape, rows: FloatArray, decoding: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns the steps that a prompt fills, the whole steps it takes, and the room of one step.
    The room depends on whether another row decodes; each does so for the same share of time."""
    share = np.minimum(decoding / rows, 1.0)
    alone = np.where(rows > 1, (1 - share) ** (rows - 1), 1.0)
    beside = np.maximum((rows - 1) * share, 1.0)
    filled_alone = shape.work_tokens / curve.room_tokens(np.zeros(1))
    filled_beside = shape.work_tokens / curve.room_tokens(beside)
    filled = alone * filled_alone + (1 - alone) * filled_beside
    num_steps = alone * _whole_steps(filled_alone) + (1 - alone) * _whole_steps(filled_beside)
    return filled, num_steps, shape.work_tokens / np.maximum(filled, 1e-30)


def _whole_steps(steps: FloatArray) -> FloatArray:
    # 1e-9: rounding must not make a prompt that fills exactly k steps take k + 1.
    return np.maximum(np.ceil(steps - 1e-9), 1.0)
