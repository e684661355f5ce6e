"""Routes that edit the system: set, add and remove, as the reference names them.

`set...` merges a list into the system, `add...` one entity; both echo what they took.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from flask import Response

from common.http_routes import HttpRoutes
from common.operations import Content, ViewT, operation
from optimizer.errors import Fault, InvalidRequest, NotFound
from optimizer.inferno_json import Body, read
from optimizer.routes.answers import NO_ROUTE, Problem, problems
from optimizer.routes.http import json_response, no_route
from optimizer.routes.reads import perf_of, target_of, with_two_names
from optimizer.service import StatefulService
from optimizer.spec import (
    AcceleratorData,
    AcceleratorSpec,
    CapacityData,
    CapacitySpec,
    ModelData,
    ModelName,
    ModelTarget,
    PerfData,
    ServerData,
    ServerSpec,
    ServiceClassData,
    ServiceClassSpec,
)
from optimizer.system import System, lookup, without


def add_edit_routes(http: HttpRoutes, service: StatefulService) -> None:
    _add_accelerators(http, service)
    _add_capacities(http, service)
    _add_models(http, service)
    _add_perf(http, service)
    _add_classes(http, service)
    _add_targets(http, service)
    _add_servers(http, service)


def _echo(summary: str, model: type[Body]) -> Callable[[ViewT], ViewT]:
    """Returns the description of an edit that answers its own body."""
    return operation(summary, {200: model, **problems(400, 413, 503)}, model)


def _edit(
    summary: str, answer: Content, others: Mapping[int, Content] | None = None
) -> Callable[[ViewT], ViewT]:
    """Returns the description of an edit without a body."""
    return operation(summary, {200: answer, **problems(503), **(others or {})})


def _add_accelerators(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/setAccelerators")
    @_echo("Merge accelerators.", AcceleratorData)
    def set_accelerators(data: AcceleratorData) -> AcceleratorData:
        service.update(lambda system: system.with_accelerators(data.accelerators))
        return data

    @http.post("/addAccelerator")
    @_echo("Add or replace an accelerator.", AcceleratorSpec)
    def add_accelerator(spec: AcceleratorSpec) -> AcceleratorSpec:
        service.update(lambda system: system.with_accelerators([spec]))
        return spec

    @http.get("/removeAccelerator/<path:name>")
    @_edit("Remove an accelerator.", AcceleratorSpec, problems(404))
    def remove_accelerator(name: str) -> AcceleratorSpec:
        before, _ = service.update(
            lambda s: replace(s, accelerators=without(s.accelerators, "accelerator", name))
        )
        return before.accelerators[name]


def _add_capacities(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/setCapacities")
    @_echo("Merge capacities.", CapacityData)
    def set_capacities(data: CapacityData) -> CapacityData:
        service.update(lambda system: system.with_capacities(data.count))
        return data

    @http.post("/setCapacity")
    @_echo("Set the cards of a type.", CapacitySpec)
    def set_capacity(spec: CapacitySpec) -> CapacitySpec:
        service.update(lambda system: system.with_capacities([spec]))
        return spec

    @http.get("/removeCapacity/<path:name>")
    @_edit("Remove the cards of a type.", CapacitySpec, problems(404))
    def remove_capacity(name: str) -> CapacitySpec:
        before, _ = service.update(
            lambda s: replace(s, capacities=without(s.capacities, "accelerator type", name))
        )
        return CapacitySpec(type=name, count=before.capacities[name])


def _add_models(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/setModels")
    @_echo("Merge performance data.", ModelData)
    def set_models(data: ModelData) -> ModelData:
        service.update(lambda system: system.with_perf(data.models))
        return data

    @http.get("/addModel/<path:name>")
    @_edit("Add a model without data.", str, problems(400))
    def add_model(name: str) -> str:
        read(ModelName, {"name": name})  # refuses names that no other route accepts
        service.update(lambda system: system.with_model(name))
        return name

    @http.get("/removeModel/<path:name>")
    @_edit("Remove a model.", str, problems(404))
    def remove_model(name: str) -> str:
        """Removes a model. Its servers stay; the next solve reports that their model is unknown."""
        service.update(lambda s: replace(s, models=without(s.models, "model", name)))
        return name


def _add_perf(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/addModelAcceleratorPerf")
    @operation(
        "Add data to a model that exists.",
        {200: PerfData, **problems(400, 404, 413, 503)},
        PerfData,
    )
    def add_perf(perf: PerfData) -> PerfData:
        def edit(system: System) -> System:
            lookup("model", system.models, perf.name)
            return system.with_perf([perf])

        service.update(edit)
        return perf

    @http.get("/removeModelAcceleratorPerf/<path:names>")
    @_edit("Remove the data of model/accelerator.", PerfData, {404: (Problem, NO_ROUTE)})
    def remove_perf(names: str) -> PerfData | Response:
        def remove(model: str, accelerator: str) -> PerfData:
            before, _ = service.update(lambda s: s.without_perf(model, accelerator))
            return perf_of(before)(model, accelerator)

        return with_two_names(names, service.state.system.models, remove)


def _add_classes(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/setServiceClasses")
    @_echo("Merge service classes.", ServiceClassData)
    def set_classes(data: ServiceClassData) -> ServiceClassData:
        service.update(lambda system: system.with_classes(data.service_classes))
        return data

    @http.get("/addServiceClass/<path:names>")
    @_edit("Add class/priority.", ServiceClassSpec, {**problems(400), 404: NO_ROUTE})
    def add_class(names: str) -> ServiceClassSpec | Response:
        """Adds a class. An existing one keeps its targets."""
        name, _, priority = names.rstrip("/").rpartition("/")
        if not name:
            return no_route()
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", priority):
            message = f"service class priority {priority} invalid"
            raise InvalidRequest([Fault("", message)])
        added = read(ServiceClassSpec, {"name": name, "priority": int(priority)})

        def edit(system: System) -> System:
            known = system.classes.get(name, added)
            return system.with_classes([known.model_copy(update={"priority": added.priority})])

        _, after = service.update(edit)
        return after.classes[name]

    @http.get("/removeServiceClass/<path:name>")
    @_edit("Remove a class.", ServiceClassSpec, problems(404))
    def remove_class(name: str) -> ServiceClassSpec:
        before, _ = service.update(
            lambda s: replace(s, classes=without(s.classes, "service class", name))
        )
        return before.classes[name]


def _add_targets(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/addServiceClassModelTargets")
    @operation(
        "Merge targets into a class that exists and has the same priority.",
        {200: ServiceClassSpec, **problems(413, 503), 400: (Problem, str), 404: str},
        ServiceClassSpec,
    )
    def add_targets(spec: ServiceClassSpec) -> ServiceClassSpec | Response:
        """Errors are bare JSON strings here, as in the reference."""

        def edit(system: System) -> System:
            known = lookup("service class", system.classes, spec.name)
            if known.effective_priority != spec.priority:
                message = f"inconsistent specs: svcName={spec.name} ; svcPrio={spec.priority}"
                raise InvalidRequest([Fault("", message)])
            targets = {t.model: t for t in [*known.model_targets, *spec.model_targets]}
            merged = known.model_copy(update={"model_targets": list(targets.values())})
            return system.with_classes([merged])

        try:
            _, after = service.update(edit)
        except (NotFound, InvalidRequest) as error:
            return json_response(str(error), error.status)
        return after.classes[spec.name]

    @http.get("/removeServiceClassModelTarget/<path:names>")
    @_edit("Remove the targets of class/model.", ModelTarget, {404: (Problem, NO_ROUTE)})
    def remove_target(names: str) -> ModelTarget | Response:
        return with_two_names(
            names, service.state.system.classes, lambda *pair: _remove_target(service, *pair)
        )


def _remove_target(service: StatefulService, class_name: str, model: str) -> ModelTarget:
    def edit(system: System) -> System:
        target_of(system)(class_name, model)
        known = system.classes[class_name]
        rest = [target for target in known.model_targets if target.model != model]
        return system.with_classes([known.model_copy(update={"model_targets": rest})])

    before, _ = service.update(edit)
    return target_of(before)(class_name, model)


def _add_servers(http: HttpRoutes, service: StatefulService) -> None:
    @http.post("/setServers")
    @_echo("Merge servers.", ServerData)
    def set_servers(data: ServerData) -> ServerData:
        service.update(lambda system: system.with_servers(data.servers))
        return data

    @http.post("/addServer")
    @_echo("Add or replace a server.", ServerSpec)
    def add_server(spec: ServerSpec) -> ServerSpec:
        service.update(lambda system: system.with_servers([spec]))
        return spec

    @http.get("/removeServer/<path:name>")
    @_edit("Remove a server.", ServerSpec, problems(404))
    def remove_server(name: str) -> ServerSpec:
        before, _ = service.update(lambda s: replace(s, servers=without(s.servers, "server", name)))
        return before.servers[name]
