"""Routes that solve, routes that answer questions, and those of the whole state."""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from flask import Response, request

from common.http_routes import HttpRoutes
from common.operations import Content, operation
from optimizer.answer import Solution
from optimizer.inferno_json import Body, encode_compact
from optimizer.questions.catalogue import CatalogueAnswer, catalogue
from optimizer.questions.explain import Explanation, explain
from optimizer.questions.how_many import HowMany, HowManyQuery, how_many
from optimizer.questions.plan import PlanAnswer, plan
from optimizer.questions.prediction import analyze
from optimizer.questions.queries import Analyzed, AnalyzeQuery, NotSized, Sized, SizeQuery, size
from optimizer.questions.tune import Tuned, TuneQuery, tune
from optimizer.questions.whatif import Sweep, WhatIfQuery, what_if
from optimizer.routes.http import json_response, problems
from optimizer.service import OptimizerService, StatefulService
from optimizer.spec import OptimizerData, OptimizerSpec, SystemData
from optimizer.state import StateData, SystemState
from optimizer.system import System

IF_MATCH = {"type": "string", "pattern": r'^(\*|"[0-9a-f]{64}")$'}


def add_planning_routes(http: HttpRoutes, service: OptimizerService) -> None:
    """Adds the routes that both modes have."""

    @http.post("/optimizeOne")
    @operation(
        "Solve the system in the body.", {200: Solution, **problems(400, 413, 503)}, SystemData
    )
    def optimize_one(data: SystemData) -> Solution:
        return service.optimize_one(System.from_spec(data.system))

    @http.get("/explain/<path:name>", in_turn=True)
    @operation("Why a server got what it got.", {200: Explanation, **problems(404, 503)})
    def explanation(name: str) -> Explanation:
        return explain(service.state.system, name, service.options.solve.cache)

    @http.get("/plan", in_turn=True)
    @operation(
        "Ordered steps from what runs to what is desired.", {200: PlanAnswer, **problems(503)}
    )
    def steps() -> PlanAnswer:
        return plan(service.state.system, service.state.allocated)

    @http.get("/state")
    @operation("The whole state; its ETag is for PUT.", {200: StateData})
    def state() -> Response:
        return _state_response(service.state)

    @http.get("/catalogue")
    @operation(
        "Models, accelerators, prices and published speeds, each with its source.",
        {200: CatalogueAnswer},
    )
    def shipped() -> CatalogueAnswer:
        return catalogue()

    _add_questions(http, service)


def _add_questions(http: HttpRoutes, service: OptimizerService) -> None:
    solve = service.options.solve

    def add(
        path: str,
        summary: str,
        model: type[Body],
        answers: Content,
        compute: Callable[[Any, System], Any],
        *others: int,
    ) -> None:
        @http.post(path, in_turn=True)
        @operation(summary, {200: answers, **problems(400, *others, 413, 503)}, model)
        def answer(query: Body) -> Any:
            return compute(query, service.state.system)

    text = "Latencies of a replica at a rate."
    add("/analyze", text, AnalyzeQuery, Analyzed, analyze, 404)
    text = "The highest rate within targets."
    add("/size", text, SizeQuery, (Sized, NotSized), size, 404)
    text = "How much slower a replica is now than its parameters say, by what was observed."
    add("/tune", text, TuneQuery, Tuned, tune, 404)
    text = "Solve with other load, cost or cards."
    add("/whatif", text, WhatIfQuery, Sweep, partial(what_if, options=solve), 404)
    text = (
        "How many accelerators of the catalogue meet service levels, at what cost, and what would "
        "change it."
    )
    add("/howmany", text, HowManyQuery, HowMany, lambda query, _: how_many(query, solve.cache))


def add_stateful_planning_routes(http: HttpRoutes, service: StatefulService) -> None:
    """Adds the routes that only a stateful optimizer has."""

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
        return _state_response(service.state)


def _etag(state: SystemState) -> str:
    return sha256(encode_compact(state.dump()).encode()).hexdigest()


def _state_response(state: SystemState) -> Response:
    response = json_response(state.dump())
    response.set_etag(_etag(state))
    return response


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
    return lambda state: _etag(state) in tags
