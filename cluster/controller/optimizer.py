"""Calls the optimizer's service over HTTP. Controller thread only."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from cluster.errors import OptimizerUnusable
from cluster.system import Json
from common.fetch import OK, FetchBounds, FetchFailed, ask

BOUNDS = FetchBounds(connect_s=3.0, read_s=60.0, max_bytes=2**26)

Count = Annotated[int, Field(ge=0, le=100_000)]
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AnswerT = TypeVar("AnswerT", bound="_Answer")


class _Answer(BaseModel):
    """Base class of answers. They have only the fields that the controller reads."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="ignore")


class ReplicaShare(_Answer):
    """Replicas on one accelerator."""

    accelerator: str = ""
    num_replicas: Count = 0
    max_batch: Count = 0
    cost: Figure = 0.0
    itl_average: Figure = 0.0
    ttft_average: Figure = 0.0


class AllocationReply(ReplicaShare):
    parts: tuple[ReplicaShare, ...] | None = None

    @property
    def each_part(self) -> tuple[ReplicaShare, ...]:
        return tuple(each for each in self.parts or (self,) if each.num_replicas)


class DetailsReply(_Answer):
    """An allocation. With `best_effort` it has fewer replicas than the load needs."""

    best_effort: bool = False


class SummaryReply(_Answer):
    total_cost: Figure = 0.0


class OptimizerReply(_Answer):
    """The answer of POST /optimizeOne, by server."""

    allocations: dict[str, AllocationReply]
    unallocated: dict[str, str] = Field(default_factory=dict)
    details: dict[str, DetailsReply] = Field(default_factory=dict)
    summary: SummaryReply = SummaryReply()


class FactorsReply(_Answer):
    """Measured times divided by the times that the parameters give."""

    decode: Figure
    prefill: Figure
    decode_error: Figure
    prefill_error: Figure


class TuneReply(_Answer):
    """The answer of POST /tune, with the current parameters."""

    factors: FactorsReply
    accepted: tuple[bool, ...]
    decode_parms: dict[str, Any] | None = None
    prefill_parms: dict[str, Any] | None = None
    perf_parms: dict[str, Any] | None = None
    service_curve: dict[str, Any] | None = None
    state: dict[str, Any]


class OptimizerClient:
    """A client of the optimizer. Its calls raise OptimizerUnusable."""

    def __init__(self, url: str) -> None:
        self._url = url

    def solve(self, system: Json) -> OptimizerReply:
        return self._ask("/optimizeOne", {"system": system}, OptimizerReply)

    def tune(self, question: Json) -> TuneReply:
        return self._ask("/tune", question, TuneReply)

    def _ask(self, path: str, body: Json, model: type[AnswerT]) -> AnswerT:
        url = self._url + path
        try:
            answer = ask(url, BOUNDS, "POST", body)
        except FetchFailed as error:
            raise OptimizerUnusable(str(error)) from error
        if answer.status != OK:
            raise OptimizerUnusable(f"{url} answers {answer.status}: {answer.text}")
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise OptimizerUnusable(
                f"{url} answers with {place}: {fault['msg']}; is it a Hearth optimizer?"
            ) from None
