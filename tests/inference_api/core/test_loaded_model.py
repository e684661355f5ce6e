"""A model in memory: what is learned of its steps, before and after it is let go."""

import pytest

from inference_api._mock_inference_api_server import ByteTokenizer, EchoRunner
from inference_api.core.loaded_model import LoadedModel
from inference_api.core.plan import PlannedStep
from inference_api.core.served_model import ServedModel
from inference_api.core.step_costs import Contents
from inference_api.model_loading import loaded, loaded_alone
from inference_api.settings import Settings
from inference_api.speculation.scheduler import DraftScheduler
from tests.inference_api.speculation.rows import rows_of

NAME = "m"


def loaded_with(**settings: object) -> LoadedModel:
    known = Settings.model_validate({"user_rows": 4, **settings})
    return loaded_alone(NAME, EchoRunner(4, 64), ByteTokenizer(), known)


@pytest.mark.parametrize("speculation", ["off", "ngram", "auto"])
def test_warm_up_tells_what_steps_take(speculation: str) -> None:
    model = loaded_with(speculation=speculation)
    model.warm_up()
    costs = model.served.costs
    assert 0 < costs.step_s(1) <= costs.step_s(4) < 1
    assert costs.prompt_token_s(0) is not None
    costs.publish(1.0)
    assert [point.rows for point in costs.speed.decode] == [1, 2, 3, 4]


@pytest.mark.parametrize("speculation", ["off", "ngram", "auto"])
def test_every_step_is_learned_from_once(speculation: str) -> None:
    model = loaded_with(speculation=speculation)
    (row,) = rows_of([1, 2, 3])
    model.learn_turn(PlannedStep(decoding=[(row, row.take_step())]), 0.5, 0.1)
    model.served.costs.publish(1.0)
    assert model.served.costs.speed.steps == 1


def test_what_was_learned_is_there_when_it_is_loaded_again() -> None:
    settings = Settings(user_rows=4, speculation="auto")
    first = loaded_alone(NAME, EchoRunner(4, 64), ByteTokenizer(), settings)
    served: ServedModel = first.served
    for _ in range(3):
        served.costs.learn_turn(Contents(2, 2, 0), 0.25, 0.0)
    again = loaded(served, EchoRunner(4, 64), settings)
    assert isinstance(again.speculation, DraftScheduler)
    assert again.speculation is not first.speculation
    assert again.speculation.costs.step_s(2) == 0.25
