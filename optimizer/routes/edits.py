"""Routes that edit the system: set, add and remove, as the reference names them."""

import re
from dataclasses import replace
from typing import Any

from optimizer.errors import Fault, InvalidRequest, NotFound
from optimizer.inferno_json import read
from optimizer.routes.http import Http, json_response, text_response
from optimizer.routes.reads import target_of, with_two_names
from optimizer.service import StatefulService
from optimizer.spec import (
    AcceleratorData,
    AcceleratorSpec,
    CapacityData,
    CapacitySpec,
    ModelData,
    PerfData,
    ServerData,
    ServerSpec,
    ServiceClassData,
    ServiceClassSpec,
)
from optimizer.system import System, lookup, without


def add_edit_routes(http: Http, service: StatefulService) -> None:
    """`set...` merges a list into the system, `add...` one entity; both echo what they took."""
    routes = _EditRoutes(http, service)
    http.post("/setAccelerators", routes.set_accelerators)
    http.post("/addAccelerator", routes.add_accelerator)
    http.get("/removeAccelerator/<path:name>", routes.remove_accelerator)
    http.post("/setCapacities", routes.set_capacities)
    http.post("/setCapacity", routes.set_capacity)
    http.get("/removeCapacity/<path:name>", routes.remove_capacity)
    http.post("/setModels", routes.set_models)
    http.get("/addModel/<path:name>", routes.add_model)
    http.get("/removeModel/<path:name>", routes.remove_model)
    http.post("/addModelAcceleratorPerf", routes.add_perf)
    http.get("/removeModelAcceleratorPerf/<path:names>", routes.remove_perf)
    http.post("/setServiceClasses", routes.set_classes)
    http.get("/addServiceClass/<path:names>", routes.add_class)
    http.get("/removeServiceClass/<path:name>", routes.remove_class)
    http.post("/addServiceClassModelTargets", routes.add_targets)
    http.get("/removeServiceClassModelTarget/<path:names>", routes.remove_target)
    http.post("/setServers", routes.set_servers)
    http.post("/addServer", routes.add_server)
    http.get("/removeServer/<path:name>", routes.remove_server)


class _EditRoutes:
    """The views. No state but the service: request threads."""

    def __init__(self, http: Http, service: StatefulService) -> None:
        self._http, self._service = http, service

    def set_accelerators(self) -> Any:
        data = self._http.body(AcceleratorData)
        self._service.update(lambda system: system.with_accelerators(data.accelerators))
        return data.dump()

    def add_accelerator(self) -> Any:
        spec = self._http.body(AcceleratorSpec)
        self._service.update(lambda system: system.with_accelerators([spec]))
        return spec.dump()

    def remove_accelerator(self, name: str) -> Any:
        before, _ = self._service.update(
            lambda s: replace(s, accelerators=without(s.accelerators, "accelerator", name))
        )
        return before.accelerators[name].dump()

    def set_capacities(self) -> Any:
        data = self._http.body(CapacityData)
        self._service.update(lambda system: system.with_capacities(data.count))
        return data.dump()

    def set_capacity(self) -> Any:
        spec = self._http.body(CapacitySpec)
        self._service.update(lambda system: system.with_capacities([spec]))
        return spec.dump()

    def remove_capacity(self, name: str) -> Any:
        before, _ = self._service.update(
            lambda s: replace(s, capacities=without(s.capacities, "accelerator type", name))
        )
        return CapacitySpec(type=name, count=before.capacities[name]).dump()

    def set_models(self) -> Any:
        data = self._http.body(ModelData)
        self._service.update(lambda system: system.with_perf(data.models))
        return data.dump()

    def add_model(self, name: str) -> Any:
        self._service.update(lambda system: system.with_model(name))
        return name

    def remove_model(self, name: str) -> Any:
        """Its servers stay; the next solve says for each that its model is not known."""
        self._service.update(lambda s: replace(s, models=without(s.models, "model", name)))
        return name

    def add_perf(self) -> Any:
        perf = self._http.body(PerfData)

        def edit(system: System) -> System:
            lookup("model", system.models, perf.name)
            return system.with_perf([perf])

        self._service.update(edit)
        return perf.dump()

    def remove_perf(self, names: str) -> Any:
        def remove(model: str, accelerator: str) -> dict[str, Any]:
            before, _ = self._service.update(lambda s: s.without_perf(model, accelerator))
            return before.models[model][accelerator].dump()

        return with_two_names(names, self._service.state.system.models, remove)

    def set_classes(self) -> Any:
        data = self._http.body(ServiceClassData)
        self._service.update(lambda system: system.with_classes(data.service_classes))
        return data.dump()

    def add_class(self, names: str) -> Any:
        """`name/priority`. A class that exists keeps its targets."""
        name, _, priority = names.rstrip("/").rpartition("/")
        if not name:
            return text_response("404 page not found", 404)
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", priority):
            message = f"service class priority {priority} invalid"
            raise InvalidRequest([Fault("", message)])
        added = read(ServiceClassSpec, {"name": name, "priority": int(priority)})

        def edit(system: System) -> System:
            known = system.classes.get(name, added)
            return system.with_classes([known.model_copy(update={"priority": added.priority})])

        _, after = self._service.update(edit)
        return after.classes[name].dump()

    def remove_class(self, name: str) -> Any:
        before, _ = self._service.update(
            lambda s: replace(s, classes=without(s.classes, "service class", name))
        )
        return before.classes[name].dump()

    def add_targets(self) -> Any:
        """Merge targets into a class that exists and has the same priority. Errors are bare JSON
        strings here, as in the reference."""
        spec = self._http.body(ServiceClassSpec)

        def edit(system: System) -> System:
            known = lookup("service class", system.classes, spec.name)
            if known.effective_priority != spec.priority:
                message = f"inconsistent specs: svcName={spec.name} ; svcPrio={spec.priority}"
                raise InvalidRequest([Fault("", message)])
            targets = {t.model: t for t in [*known.model_targets, *spec.model_targets]}
            merged = known.model_copy(update={"model_targets": list(targets.values())})
            return system.with_classes([merged])

        try:
            _, after = self._service.update(edit)
        except (NotFound, InvalidRequest) as error:
            return json_response(str(error), error.status)
        return after.classes[spec.name].dump()

    def remove_target(self, names: str) -> Any:
        def remove(class_name: str, model: str) -> dict[str, Any]:
            def edit(system: System) -> System:
                target_of(system)(class_name, model)
                known = system.classes[class_name]
                rest = [target for target in known.model_targets if target.model != model]
                changed = known.model_copy(update={"model_targets": rest})
                return system.with_classes([changed])

            before, _ = self._service.update(edit)
            return target_of(before)(class_name, model)

        return with_two_names(names, self._service.state.system.classes, remove)

    def set_servers(self) -> Any:
        data = self._http.body(ServerData)
        self._service.update(lambda system: system.with_servers(data.servers))
        return data.dump()

    def add_server(self) -> Any:
        spec = self._http.body(ServerSpec)
        self._service.update(lambda system: system.with_servers([spec]))
        return spec.dump()

    def remove_server(self, name: str) -> Any:
        before, _ = self._service.update(
            lambda s: replace(s, servers=without(s.servers, "server", name))
        )
        return before.servers[name].dump()
