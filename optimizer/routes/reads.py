"""Routes that change nothing: the entities, explanations, plans and questions."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from flask import Response, request

from optimizer.errors import NotFound
from optimizer.inferno_json import encode_compact
from optimizer.questions.explain import explain
from optimizer.questions.plan import plan
from optimizer.questions.queries import AnalyzeQuery, SizeQuery, analyze, size
from optimizer.questions.whatif import WhatIfQuery, what_if
from optimizer.routes.http import Http, json_response, text_response, two_names
from optimizer.service import OptimizerService
from optimizer.spec import (
    AcceleratorData,
    CapacitySpec,
    ModelData,
    ModelTarget,
    PerfData,
    ServerData,
    ServiceClassData,
)
from optimizer.state import State
from optimizer.system import System, in_order, lookup


def add_read_routes(http: Http, service: OptimizerService) -> None:
    """The reference's GET routes, present in both modes."""

    def system() -> System:
        return service.state.system

    http.get("/getAccelerators", lambda: _accelerators(system()))
    http.get("/getAccelerator/<path:name>", _entity(system, "accelerator", "accelerators"))
    http.get("/getCapacities", lambda: system().capacity_data().dump())
    http.get("/getCapacity/<path:name>", lambda name: _capacity(system(), name))
    http.get("/getModels", lambda: sorted(system().models))
    http.get("/getModel/<path:name>", lambda name: _model(system(), name))
    http.get("/getServiceClasses", lambda: _classes(system()))
    http.get("/getServiceClass/<path:name>", _entity(system, "service class", "classes"))
    http.get("/getServers", lambda: _servers(system()))
    http.get("/getServer/<path:name>", _entity(system, "server", "servers"))
    http.get(
        "/getServiceClassModelTarget/<path:names>",
        lambda names: with_two_names(names, system().classes, target_of(system())),
    )
    http.get(
        "/getModelAcceleratorPerf/<path:names>",
        lambda names: with_two_names(names, system().models, perf_of(system())),
    )


def add_query_routes(http: Http, service: OptimizerService) -> None:
    """Ours: why, what if, how to get there, and the state itself."""

    solve = service.options.solve
    http.get("/explain/<path:name>", lambda name: explain(service.state.system, name, solve.cache))
    http.get("/plan", lambda: plan(service.state.system, service.state.allocated))
    http.get("/state", lambda: state_response(service.state))
    http.post("/analyze", lambda: analyze(http.body(AnalyzeQuery), service.state.system))
    http.post("/size", lambda: size(http.body(SizeQuery), service.state.system))
    http.post("/whatif", lambda: what_if(http.body(WhatIfQuery), service.state.system, solve))


def with_two_names(
    names: str, known: Any, answer: Callable[[str, str], dict[str, Any]]
) -> dict[str, Any] | Response:
    """Answer about two names in a path; a path that has only one is no route."""
    split = two_names(names, lambda first: first in known)
    return text_response("404 page not found", 404) if split is None else answer(*split)


def perf_of(system: System) -> Callable[[str, str], dict[str, Any]]:
    def find(model: str, accelerator: str) -> dict[str, Any]:
        perf: PerfData = lookup("accelerator", lookup("model", system.models, model), accelerator)
        return perf.dump()

    return find


def target_of(system: System) -> Callable[[str, str], dict[str, Any]]:
    def find(class_name: str, model: str) -> dict[str, Any]:
        target: ModelTarget | None = lookup("service class", system.classes, class_name).target(
            model
        )
        if target is None:
            raise NotFound("model", model)
        return target.dump()

    return find


def etag(state: State) -> str:
    return sha256(encode_compact(state.dump()).encode()).hexdigest()


def state_response(state: State) -> Response:
    response = json_response(state.dump())
    response.set_etag(etag(state))
    return response


def _entity(system: Callable[[], System], kind: str, field: str) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        return lookup(kind, getattr(system(), field), name).dump()

    return find


def _accelerators(system: System) -> Any:
    """AcceleratorData as documented; `?format=list` is the bare list that the reference's server
    really sends."""
    data = AcceleratorData(accelerators=in_order(system.accelerators)).dump()
    return data["accelerators"] if request.args.get("format") == "list" else data


def _capacity(system: System, name: str) -> dict[str, Any]:
    if name not in system.capacities:
        raise NotFound("capacity for", name)
    return CapacitySpec(type=name, count=system.capacities[name]).dump()


def _model(system: System, name: str) -> dict[str, Any]:
    return ModelData(models=in_order(lookup("model", system.models, name))).dump()


def _classes(system: System) -> dict[str, Any]:
    return ServiceClassData(service_classes=in_order(system.classes)).dump()


def _servers(system: System) -> dict[str, Any]:
    return ServerData(servers=in_order(system.servers)).dump()
