"""Serves the measured step times of each model, for planning."""

from collections.abc import Sequence
from datetime import UTC, datetime

from flask import Blueprint, Response, jsonify
from pydantic import BaseModel

from common.operations import operation
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.plan import budget_tokens, chunk_tokens
from inference_api.core.prompt_costs import Point
from inference_api.core.served_model import ServedModel
from inference_api.settings import Settings

Row = tuple[float, float, float]  # decoding rows, milliseconds, standard error


class ModelSpeed(BaseModel):
    """Step times at the mean speed of the last five seconds of steps, as `[rows, ms,
    standard_error_ms]` by ascending rows.

    A step with n decoding rows and p prompt tokens takes `decode_ms`(n) + p x
    `prefill_ms_per_token`(n); for n = 0, `decode_ms`(1) counts. `speed` is the present speed
    relative to the first measurement; `measured_at` is null before that. Since start, `steps` steps
    took `steps_s` in the model. `steps_by_tokens` has `[tokens, steps, prompt_tokens]` by ascending
    tokens: the number of steps that drew about this many tokens, and their prompt tokens.

    A step has at most `chunk_tokens` prompt tokens. While rows decode, it has at most
    `budget_tokens` tokens altogether; null if the budget is not a number of tokens.
    """

    decode_ms: list[Row]
    prefill_ms_per_token: list[Row]
    speed: float
    measured_at: datetime | None
    steps: int
    steps_s: float
    steps_by_tokens: list[tuple[int, int, int]]
    chunk_tokens: int
    budget_tokens: int | None

    @classmethod
    def of(cls, served: ServedModel, settings: Settings) -> "ModelSpeed":
        step_speed = served.costs.speed
        at_s = step_speed.measured_at_s
        has_budget = served.is_batch_invariant and settings.itl_budget_ms is None
        return cls(
            decode_ms=_in_ms(step_speed.decode),
            prefill_ms_per_token=_in_ms(step_speed.prompt_token),
            speed=round(step_speed.speed, 4),
            measured_at=None if at_s is None else datetime.fromtimestamp(at_s, UTC),
            steps=step_speed.steps,
            steps_s=round(step_speed.steps_s, 6),
            steps_by_tokens=[tuple(each) for each in step_speed.counts],
            chunk_tokens=chunk_tokens(settings, served),
            budget_tokens=budget_tokens(settings, served.max_rows) if has_budget else None,
        )


def create_blueprint(backend: DecodeBackend) -> Blueprint:
    blueprint = Blueprint("speed", __name__)

    @blueprint.get("/speed")
    @operation(
        "What steps of each model take, by what is in them; models that are still loading at "
        "start are missing.",
        {200: dict[str, ModelSpeed]},
    )
    def speed() -> Response:
        return jsonify(
            {
                name: ModelSpeed.of(served, backend.settings).model_dump(mode="json")
                for name, served in backend.served.items()
            }
        )

    return blueprint


def _in_ms(points: Sequence[Point]) -> list[Row]:
    return [
        (round(rows, 2), round(1000 * seconds, 6), round(1000 * error_s, 6))
        for rows, seconds, error_s in points
    ]
