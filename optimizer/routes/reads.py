"""Routes that change nothing: the entities, explanations, plans and questions."""

from collections.abc import Callable, Container
from hashlib import sha256
from typing import Any

from flask import Response, request

from common.http_routes import HttpRoutes
from common.operations import operation
from optimizer.errors import NotFound
from optimizer.inferno_json import BodyT, encode_compact
from optimizer.questions.catalogue import CatalogueAnswer, catalogue
from optimizer.questions.explain import Explanation, explain
from optimizer.questions.how_many import HowMany, HowManyQuery, how_many
from optimizer.questions.plan import PlanAnswer, plan
from optimizer.questions.prediction import analyze
from optimizer.questions.queries import Analyzed, AnalyzeQuery, NotSized, Sized, SizeQuery, size
from optimizer.questions.tune import Tuned, TuneQuery, tune
from optimizer.questions.whatif import Sweep, WhatIfQuery, what_if
from optimizer.routes.answers import NO_ROUTE, Problem, problems
from optimizer.routes.http import json_response, no_route, two_names
from optimizer.service import OptimizerService
from optimizer.spec import (
    AcceleratorData,
    AcceleratorSpec,
    CapacityData,
    CapacitySpec,
    ModelData,
    ModelTarget,
    PerfData,
    ServerData,
    ServerSpec,
    ServiceClassData,
    ServiceClassSpec,
)
from optimizer.state import StateData, SystemState
from optimizer.system import System, in_order, lookup

FORMAT = {"type": "string", "enum": ["list"]}


def add_read_routes(http: HttpRoutes, service: OptimizerService) -> None:
    """The reference's GET routes, present in both modes."""

    def system() -> System:
        return service.state.system

    _add_hardware(http, system)
    _add_models(http, system)
    _add_classes(http, system)
    _add_servers(http, system)


def _add_hardware(http: HttpRoutes, system: Callable[[], System]) -> None:
    @http.get("/getAccelerators")
    @operation(
        "All accelerators; as a bare list, which the reference's server sends, with format=list.",
        {200: (AcceleratorData, list[AcceleratorSpec])},
        query={"format": FORMAT},
    )
    def accelerators() -> Any:
        data = AcceleratorData(accelerators=in_order(system().accelerators)).dump()
        return data["accelerators"] if request.args.get("format") == "list" else data

    @http.get("/getAccelerator/<path:name>")
    @operation("One accelerator.", {200: AcceleratorSpec, **problems(404)})
    def accelerator(name: str) -> AcceleratorSpec:
        return lookup("accelerator", system().accelerators, name)

    @http.get("/getCapacities")
    @operation("Cards by type.", {200: CapacityData})
    def capacities() -> CapacityData:
        return system().capacity_data()

    @http.get("/getCapacity/<path:name>")
    @operation("Cards of one type.", {200: CapacitySpec, **problems(404)})
    def capacity(name: str) -> CapacitySpec:
        return CapacitySpec(type=name, count=lookup("capacity for", system().capacities, name))


def _add_models(http: HttpRoutes, system: Callable[[], System]) -> None:
    @http.get("/getModels")
    @operation("The names of all models.", {200: list[str]})
    def models() -> list[str]:
        return sorted(system().models)

    @http.get("/getModel/<path:name>")
    @operation("Performance data of a model.", {200: ModelData, **problems(404)})
    def model(name: str) -> ModelData:
        return ModelData(models=in_order(lookup("model", system().models, name)))

    @http.get("/getModelAcceleratorPerf/<path:names>")
    @operation("Performance data of model/accelerator.", {200: PerfData, 404: (Problem, NO_ROUTE)})
    def perf(names: str) -> PerfData | Response:
        return with_two_names(names, system().models, perf_of(system()))


def _add_classes(http: HttpRoutes, system: Callable[[], System]) -> None:
    @http.get("/getServiceClasses")
    @operation("All service classes.", {200: ServiceClassData})
    def classes() -> ServiceClassData:
        return ServiceClassData(service_classes=in_order(system().classes))

    @http.get("/getServiceClass/<path:name>")
    @operation("One class.", {200: ServiceClassSpec, **problems(404)})
    def service_class(name: str) -> ServiceClassSpec:
        return lookup("service class", system().classes, name)

    @http.get("/getServiceClassModelTarget/<path:names>")
    @operation("Targets of class/model.", {200: ModelTarget, 404: (Problem, NO_ROUTE)})
    def target(names: str) -> ModelTarget | Response:
        return with_two_names(names, system().classes, target_of(system()))


def _add_servers(http: HttpRoutes, system: Callable[[], System]) -> None:
    @http.get("/getServers")
    @operation("All servers.", {200: ServerData})
    def servers() -> ServerData:
        return ServerData(servers=in_order(system().servers))

    @http.get("/getServer/<path:name>")
    @operation("One server.", {200: ServerSpec, **problems(404)})
    def server(name: str) -> ServerSpec:
        return lookup("server", system().servers, name)


def add_query_routes(http: HttpRoutes, service: OptimizerService) -> None:
    """Hearth's own routes: explanations, plans, and the state."""
    solve = service.options.solve

    @http.get("/explain/<path:name>", in_turn=True)
    @operation("Why a server got what it got.", {200: Explanation, **problems(404, 503)})
    def explanation(name: str) -> Explanation:
        return explain(service.state.system, name, solve.cache)

    @http.get("/plan")
    @operation("Ordered steps from what runs to what is desired.", {200: PlanAnswer})
    def steps() -> PlanAnswer:
        return plan(service.state.system, service.state.allocated)

    @http.get("/state")
    @operation("The whole state; its ETag is for PUT.", {200: StateData})
    def state() -> Response:
        return state_response(service.state)


def add_question_routes(http: HttpRoutes, service: OptimizerService) -> None:
    """Hearth's own routes: one replica's latencies and rates, and what-if questions."""
    solve = service.options.solve

    @http.post("/analyze", in_turn=True)
    @operation(
        "Latencies of a replica at a rate.",
        {200: Analyzed, **problems(400, 404, 413, 503)},
        AnalyzeQuery,
    )
    def latencies(query: AnalyzeQuery) -> Analyzed:
        return analyze(query, service.state.system)

    @http.post("/size", in_turn=True)
    @operation(
        "The highest rate within targets.",
        {200: (Sized, NotSized), **problems(400, 404, 413, 503)},
        SizeQuery,
    )
    def highest_rate(query: SizeQuery) -> Sized | NotSized:
        return size(query, service.state.system)

    @http.post("/tune", in_turn=True)
    @operation(
        "How much slower a replica is now than its parameters say, by what was observed.",
        {200: Tuned, **problems(400, 404, 413, 503)},
        TuneQuery,
    )
    def speed_now(query: TuneQuery) -> Tuned:
        return tune(query, service.state.system)

    @http.post("/whatif", in_turn=True)
    @operation(
        "Solve with other load, cost or cards.",
        {200: Sweep, **problems(400, 404, 413, 503)},
        WhatIfQuery,
    )
    def sweep(query: WhatIfQuery) -> Sweep:
        return what_if(query, service.state.system, solve)


def add_catalogue_routes(http: HttpRoutes, service: OptimizerService) -> None:
    """Hearth's own routes: the catalogue of models and accelerators, and what to rent."""
    solve = service.options.solve

    @http.get("/catalogue")
    @operation(
        "Models, accelerators, prices and published speeds, each with its source.",
        {200: CatalogueAnswer},
    )
    def shipped() -> CatalogueAnswer:
        return catalogue()

    @http.post("/howmany", in_turn=True)
    @operation(
        "How many accelerators of the catalogue meet service levels, at what cost, and what would "
        "change it.",
        {200: HowMany, **problems(400, 413, 503)},
        HowManyQuery,
    )
    def how_many_cards(query: HowManyQuery) -> HowMany:
        return how_many(query, solve.cache)


def with_two_names(
    names: str, known: Container[str], answer: Callable[[str, str], BodyT]
) -> BodyT | Response:
    """Returns the answer about the two names in a path. A path with one name is no route."""
    split = two_names(names, lambda first: first in known)
    return no_route() if split is None else answer(*split)


def perf_of(system: System) -> Callable[[str, str], PerfData]:
    def find(model: str, accelerator: str) -> PerfData:
        return lookup("accelerator", lookup("model", system.models, model), accelerator)

    return find


def target_of(system: System) -> Callable[[str, str], ModelTarget]:
    def find(class_name: str, model: str) -> ModelTarget:
        target = lookup("service class", system.classes, class_name).target(model)
        if target is None:
            raise NotFound("model", model)
        return target

    return find


def etag(state: SystemState) -> str:
    return sha256(encode_compact(state.dump()).encode()).hexdigest()


def state_response(state: SystemState) -> Response:
    response = json_response(state.dump())
    response.set_etag(etag(state))
    return response
