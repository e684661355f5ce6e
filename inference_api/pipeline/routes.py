"""Routes that change and measure the split of a model, for the weights driver."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, cast

from flask import Blueprint
from pydantic import Field
from typing_extensions import TypedDict  # pydantic supports typing.TypedDict from Python 3.12 on

from common.errors import Error
from common.operations import operation
from inference_api.core.decode_backend import DecodeBackend
from inference_api.errors import InvalidRequest, StartupError
from inference_api.pipeline.ranks import checked
from inference_api.settings.server import MAX_RANKS, MIN_RANKS
from inference_api.web.caller import read_strictly
from inference_api.web.fields import MAX_INTEGER, Body

if TYPE_CHECKING:
    from inference_api.pipeline.runner import PipelineRunner

MEASURE_S = 1.0


class SplitBody(Body):
    layers: list[Annotated[int, Field(ge=1, le=MAX_INTEGER)]] = Field(
        min_length=MIN_RANKS,
        max_length=MAX_RANKS,
        description="Layers of each rank, in the ring's order; their sum is the model's.",
    )


class SplitAnswer(TypedDict):
    layers: list[int]


class SplitSpeed(SplitAnswer):
    tokens_per_s: float


def create_blueprint(backend: DecodeBackend) -> Blueprint:
    """`backend` serves one model, which is split."""
    blueprint = Blueprint("pipeline", __name__)

    def admitted() -> "PipelineRunner":
        """Returns the runner. Raises the errors that a new request would get."""
        backend.check_admission()
        [model] = backend.models.values()
        return cast("PipelineRunner", model.runner)

    @blueprint.post("/pipeline/split")
    @operation(
        "Give each rank these layers, in a pause between requests. Cached prefixes are lost.",
        {200: SplitAnswer, 400: Error, 503: Error},
        SplitBody,
    )
    def split() -> SplitAnswer:
        layers = read_strictly(SplitBody).layers
        runner = admitted()
        try:
            wanted = checked(tuple(layers), runner.num_layers, len(runner.split))
        except StartupError as error:
            raise InvalidRequest(error.faults[0], "layers") from None
        if not runner.pauses.do(partial(runner.set_split, wanted)):
            raise InvalidRequest(
                f"{layers} is more than the memory of a rank, whose log says of which; give it "
                "fewer layers.",
                "layers",
            )
        return SplitAnswer(layers=layers)

    @blueprint.post("/pipeline/measure")
    @operation(
        "Measure steps of all rows for a second, in a pause between requests.",
        {200: SplitSpeed, 503: Error},
    )
    def measure() -> SplitSpeed:
        """Also returns the measured split, because another operator may have moved layers."""
        runner = admitted()

        def speed() -> SplitSpeed:
            tokens_per_s = runner.tokens_per_s(MEASURE_S, runner.max_rows)
            return SplitSpeed(layers=list(runner.split), tokens_per_s=tokens_per_s)

        return runner.pauses.do(speed)

    return blueprint
