"""Routes that solve, and those that put a whole state in place."""

from collections.abc import Callable
from typing import Any

from flask import Response, request

from optimizer.routes.http import Http
from optimizer.routes.reads import etag, state_response
from optimizer.service import OptimizerService, StatefulService
from optimizer.spec import OptimizerData, OptimizerSpec, SystemData
from optimizer.state import State, StateData
from optimizer.system import System


def add_solve_routes(http: Http, service: OptimizerService) -> None:
    def optimize_one() -> dict[str, Any]:
        return service.optimize_one(System.from_spec(http.body(SystemData).system))

    http.post("/optimizeOne", optimize_one)


def add_stateful_solve_routes(http: Http, service: StatefulService) -> None:
    def apply_allocation() -> str:
        service.apply_allocation()
        return "Done"

    def put_state() -> Response:
        service.replace_state(http.body(StateData).to_state(), _expected_by_client())
        return state_response(service.state)

    http.post("/optimize", lambda: service.optimize(_flags(http)))
    http.get("/applyAllocation", apply_allocation)
    http.put("/state", put_state)


def _flags(http: Http) -> OptimizerSpec:
    """Flags bare, as the reference takes them, or under `optimizer`, as its document says."""
    value = http.json()
    if isinstance(value, dict) and any(key.lower() == "optimizer" for key in value):
        return http.read(OptimizerData, value).optimizer
    return http.read(OptimizerSpec, value)


def _expected_by_client() -> Callable[[State], bool]:
    """The If-Match of the request: what the client last saw, `*`, or nothing, which is any."""
    wanted = request.if_match
    if not wanted or wanted.star_tag:
        return lambda _: True
    return lambda state: etag(state) in wanted
