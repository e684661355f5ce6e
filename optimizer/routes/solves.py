"""Routes that solve, and routes that replace the whole state."""

from collections.abc import Callable

from flask import Response, request

from common.http_routes import HttpRoutes
from common.operations import operation
from optimizer.answer import Solution
from optimizer.routes.http import problems
from optimizer.routes.reads import etag, state_response
from optimizer.service import OptimizerService, StatefulService
from optimizer.spec import OptimizerData, OptimizerSpec, SystemData
from optimizer.state import StateData, SystemState
from optimizer.system import System

IF_MATCH = {"type": "string", "pattern": r'^(\*|"[0-9a-f]{64}")$'}


def add_solve_routes(http: HttpRoutes, service: OptimizerService) -> None:
    @http.post("/optimizeOne")
    @operation(
        "Solve the system in the body.", {200: Solution, **problems(400, 413, 503)}, SystemData
    )
    def optimize_one(data: SystemData) -> Solution:
        return service.optimize_one(System.from_spec(data.system))


def add_stateful_solve_routes(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/optimize")
    @operation(
        "Solve the system that is kept.",
        {200: Solution, **problems(400, 413, 503)},
        (OptimizerSpec, OptimizerData),
    )
    def optimize() -> Solution:
        return service.optimize(_flags(http))

    @http.get("/applyAllocation")
    @operation("Let what was allocated be what runs.", {200: str, **problems(503)})
    def apply_allocation() -> str:
        service.apply_allocation()
        return "Done"

    @http.put("/state")
    @operation(
        "Put a whole state in place.",
        {200: StateData, **problems(400, 412, 413, 503)},
        StateData,
        headers={"If-Match": IF_MATCH},
    )
    def put_state(data: StateData) -> Response:
        service.replace_state(data.to_state(), _expected_by_client())
        return state_response(service.state)


def _flags(http: HttpRoutes) -> OptimizerSpec:
    """Returns the flags: bare, as the reference reads them, or under `optimizer`, as documented."""
    value, read = http.decoded(), http.wire.read
    is_document = isinstance(value, dict) and any(key.lower() == "optimizer" for key in value)
    flags: OptimizerSpec = (
        read(OptimizerData, value).optimizer if is_document else read(OptimizerSpec, value)
    )
    return flags


def _expected_by_client() -> Callable[[SystemState], bool]:
    """Returns the check for If-Match: an ETag must be the state's; `*` or none allow any state."""
    tags = request.if_match
    if not tags or tags.star_tag:
        return lambda _: True
    return lambda state: etag(state) in tags
