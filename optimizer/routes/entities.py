"""The reference's routes of entities: reads, and in a stateful optimizer edits.

`set...` merges a list into the system, `add...` one entity; both echo what they took.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flask import Response, request

from common.http_routes import HttpRoutes
from common.operations import Content, ViewT, operation
from optimizer.errors import Fault, InvalidRequest, NotFound
from optimizer.inferno_json import Body, read
from optimizer.routes.http import (
    NO_ROUTE,
    Problem,
    json_response,
    no_route,
    problems,
    with_two_names,
)
from optimizer.service import OptimizerService, StatefulService
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
from optimizer.system import System, in_order, lookup, without

BARE_LIST = {"format": {"type": "string", "enum": ["list"]}}


@dataclass(frozen=True, slots=True)
class EntityKind:
    """A kind of entity with uniform routes, whose paths contain its words. The field
    `system_field` of a `System` has them by name, `data_field` of `data` lists them."""

    word: str
    words: str
    spec: type[Body]
    data: type[Body]
    data_field: str
    system_field: str
    merge: Callable[[System, Iterable[Any]], System]
    adds_by: str = ""  # verb of the route that adds one entity; empty without such a route
    absent: str = ""  # the reference's word for an entity not found, if not `word`
    not_removed: str = ""

    def path(self, verb: str, words: str = "") -> str:
        return f"/{verb}{(words or self.word).title().replace(' ', '')}"

    def entity(self, system: System, name: str) -> Body:
        """Returns an entity. Raises NotFound."""
        found = lookup(self.absent or self.word, getattr(system, self.system_field), name)
        return found if isinstance(found, Body) else CapacitySpec(type=name, count=found)

    def entities(self, system: System) -> Body:
        names = sorted(getattr(system, self.system_field))
        return self.data(**{self.data_field: [self.entity(system, name) for name in names]})

    def without(self, system: System, name: str) -> System:
        """Raises NotFound."""
        entities: Mapping[str, Any] = getattr(system, self.system_field)
        changed: dict[str, Any] = {
            self.system_field: without(entities, self.not_removed or self.word, name)
        }
        return replace(system, **changed)


ACCELERATORS = EntityKind(
    word="accelerator",
    words="accelerators",
    spec=AcceleratorSpec,
    data=AcceleratorData,
    data_field="accelerators",
    system_field="accelerators",
    merge=System.with_accelerators,
    adds_by="add",
)
KINDS = (
    ACCELERATORS,
    EntityKind(
        word="capacity",
        words="capacities",
        spec=CapacitySpec,
        data=CapacityData,
        data_field="count",
        system_field="capacities",
        merge=System.with_capacities,
        adds_by="set",
        absent="capacity for",
        not_removed="accelerator type",
    ),
    EntityKind(
        word="service class",
        words="service classes",
        spec=ServiceClassSpec,
        data=ServiceClassData,
        data_field="service_classes",
        system_field="classes",
        merge=System.with_classes,
    ),
    EntityKind(
        word="server",
        words="servers",
        spec=ServerSpec,
        data=ServerData,
        data_field="servers",
        system_field="servers",
        merge=System.with_servers,
        adds_by="add",
    ),
)


def add_read_routes(http: HttpRoutes, service: OptimizerService) -> None:
    """Adds the reference's GET routes, which both modes have."""
    for kind in KINDS:
        _add_reads(http, service, kind)

    @http.get("/getModels")
    @operation("The names of all models.", {200: list[str]})
    def models() -> list[str]:
        return sorted(service.state.system.models)

    @http.get("/getModel/<path:name>")
    @operation("Performance data of a model.", {200: ModelData, **problems(404)})
    def model(name: str) -> ModelData:
        return ModelData(models=in_order(lookup("model", service.state.system.models, name)))

    @http.get("/getModelAcceleratorPerf/<path:names>")
    @operation("Performance data of model/accelerator.", {200: PerfData, 404: (Problem, NO_ROUTE)})
    def perf(names: str) -> PerfData | Response:
        system = service.state.system
        return with_two_names(names, system.models, system.perf_of)

    @http.get("/getServiceClassModelTarget/<path:names>")
    @operation("Targets of class/model.", {200: ModelTarget, 404: (Problem, NO_ROUTE)})
    def target(names: str) -> ModelTarget | Response:
        system = service.state.system
        return with_two_names(names, system.classes, system.target_of)


def _add_reads(http: HttpRoutes, service: OptimizerService, kind: EntityKind) -> None:
    is_first = kind is ACCELERATORS
    as_reference = "; as a bare list, which the reference's server sends, with format=list"

    @http.get(kind.path("get", kind.words))
    @operation(
        f"All {kind.words}{as_reference if is_first else ''}.",
        {200: (kind.data, list[AcceleratorSpec]) if is_first else kind.data},
        query=BARE_LIST if is_first else {},
    )
    def entities() -> Any:
        data = kind.entities(service.state.system)
        is_bare = is_first and request.args.get("format") == "list"
        return data.dump()[kind.data_field] if is_bare else data

    @http.get(f"{kind.path('get')}/<path:name>")
    @operation(f"One {kind.word}.", {200: kind.spec, **problems(404)})
    def entity(name: str) -> Body:
        return kind.entity(service.state.system, name)


def add_edit_routes(http: HttpRoutes, service: StatefulService) -> None:
    """Adds the reference's routes that change entities."""
    for kind in KINDS:
        _add_edits(http, service, kind)
    _add_model_edits(http, service)
    _add_class_edits(http, service)


def _echo(summary: str, model: type[Body]) -> Callable[[ViewT], ViewT]:
    """Returns the description of an edit that answers with its request's body."""
    return operation(summary, {200: model, **problems(400, 413, 503)}, model)


def _edit(
    summary: str, answer: Content, failures: Mapping[int, Content] | None = None
) -> Callable[[ViewT], ViewT]:
    """Returns the description of an edit without a body."""
    return operation(summary, {200: answer, **problems(503), **(failures or {})})


def _add_edits(http: HttpRoutes, service: StatefulService, kind: EntityKind) -> None:
    @http.post(kind.path("set", kind.words))
    @_echo(f"Merge {kind.words}.", kind.data)
    def merge(data: Body) -> Body:
        service.update(lambda system: kind.merge(system, getattr(data, kind.data_field)))
        return data

    @http.get(f"{kind.path('remove')}/<path:name>")
    @_edit(f"Remove one of the {kind.words}.", kind.spec, problems(404))
    def remove(name: str) -> Body:
        before, _ = service.update(lambda system: kind.without(system, name))
        return kind.entity(before, name)

    if not kind.adds_by:
        return

    @http.post(kind.path(kind.adds_by))
    @_echo(f"Add or replace one of the {kind.words}.", kind.spec)
    def add(spec: Body) -> Body:
        service.update(lambda system: kind.merge(system, [spec]))
        return spec


def _add_model_edits(http: HttpRoutes, service: StatefulService) -> None:
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
            return before.perf_of(model, accelerator)

        return with_two_names(names, service.state.system.models, remove)


def _add_class_edits(http: HttpRoutes, service: StatefulService) -> None:
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
            existing = system.classes.get(name, added)
            return system.with_classes([existing.model_copy(update={"priority": added.priority})])

        _, after = service.update(edit)
        return after.classes[name]

    @http.post("/addServiceClassModelTargets")
    @operation(
        "Merge targets into a class that exists and has the same priority.",
        {200: ServiceClassSpec, **problems(413, 503), 400: (Problem, str), 404: str},
        ServiceClassSpec,
    )
    def add_targets(spec: ServiceClassSpec) -> ServiceClassSpec | Response:
        """Errors are bare JSON strings here, as in the reference."""

        def edit(system: System) -> System:
            existing = lookup("service class", system.classes, spec.name)
            if existing.effective_priority != spec.priority:
                message = f"inconsistent specs: svcName={spec.name} ; svcPrio={spec.priority}"
                raise InvalidRequest([Fault("", message)])
            targets = {t.model: t for t in [*existing.model_targets, *spec.model_targets]}
            merged = existing.model_copy(update={"model_targets": list(targets.values())})
            return system.with_classes([merged])

        try:
            _, after = service.update(edit)
        except (NotFound, InvalidRequest) as error:
            return json_response(str(error), error.status)
        return after.classes[spec.name]

    @http.get("/removeServiceClassModelTarget/<path:names>")
    @_edit("Remove the targets of class/model.", ModelTarget, {404: (Problem, NO_ROUTE)})
    def remove_target(names: str) -> ModelTarget | Response:
        def remove(class_name: str, model: str) -> ModelTarget:
            before, _ = service.update(lambda s: s.without_target(class_name, model))
            return before.target_of(class_name, model)

        return with_two_names(names, service.state.system.classes, remove)
