"""A system to optimise, as one immutable value. Any thread may hold and read it.

Changes (`with_...`) return a new value, so a solve can rely on the one it was given.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from optimizer.errors import NotFound
from optimizer.spec import (
    AcceleratorData,
    AcceleratorSpec,
    AllocationData,
    CapacityData,
    CapacitySpec,
    ModelData,
    ModelTarget,
    OptimizerData,
    OptimizerSpec,
    PerfData,
    ServerData,
    ServerSpec,
    ServiceClassData,
    ServiceClassSpec,
    SystemSpec,
)

T = TypeVar("T")

PerfByAccelerator = Mapping[str, PerfData]
Targets = Mapping[tuple[str, str], ModelTarget]  # targets by class and model


@dataclass(frozen=True, slots=True)
class System:
    """Entities by name, in the order they were first given. Never change the mappings."""

    accelerators: Mapping[str, AcceleratorSpec] = field(default_factory=dict)
    capacities: Mapping[str, int] = field(default_factory=dict)  # cards by type
    models: Mapping[str, PerfByAccelerator] = field(default_factory=dict)
    classes: Mapping[str, ServiceClassSpec] = field(default_factory=dict)
    servers: Mapping[str, ServerSpec] = field(default_factory=dict)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)

    @classmethod
    def from_spec(cls, spec: SystemSpec) -> "System":
        """Returns the system of a spec. Later duplicates of a name replace earlier ones."""
        system = cls(optimizer=spec.optimizer_data.optimizer)
        system = system.with_accelerators(spec.accelerator_data.accelerators)
        system = system.with_capacities(spec.capacity_data.count)
        system = system.with_perf(spec.model_data.models)
        system = system.with_classes(spec.service_class_data.service_classes)
        return system.with_servers(spec.server_data.servers)

    def to_spec(self) -> SystemSpec:
        """Returns the spec for JSON, with lists sorted by name."""
        return SystemSpec(
            accelerator_data=AcceleratorData(accelerators=in_order(self.accelerators)),
            model_data=ModelData(
                models=[perf for by_acc in in_order(self.models) for perf in in_order(by_acc)]
            ),
            service_class_data=ServiceClassData(service_classes=in_order(self.classes)),
            server_data=ServerData(servers=in_order(self.servers)),
            optimizer_data=OptimizerData(optimizer=self.optimizer),
            capacity_data=CapacityData(
                count=[
                    CapacitySpec(type=name, count=count)
                    for name, count in sorted(self.capacities.items())
                ]
            ),
        )

    def targets(self) -> Targets:
        """Returns the targets of all classes; later duplicates replace earlier ones."""
        return {
            (name, target.model): target
            for name, service_class in self.classes.items()
            for target in service_class.model_targets
        }

    def unit(self, model: str, accelerator: str) -> tuple[str, int, float]:
        """Returns the card type, cards and cost of one replica; empty and 0 for an unknown name."""
        spec = self.accelerators.get(accelerator)
        if spec is None:
            return "", 0, 0.0
        units = self.units(model, accelerator)
        return spec.type, units * spec.multiplicity, units * spec.cost

    def units(self, model: str, accelerator: str) -> int:
        """Returns the units of one replica; 1 where there is no performance data."""
        perf = self.models.get(model, {}).get(accelerator)
        return perf.units if perf else 1

    def cards_left(self, allocations: Iterable[tuple[str, AllocationData]]) -> dict[str, int]:
        """Returns the cards of each type that are left; negative beyond the limits."""
        left = Counter(self.capacities)
        for model, allocation in allocations:
            for part in allocation.each_part():
                card_type, cards, _ = self.unit(model, part.accelerator)
                left[card_type] -= cards * part.num_replicas
        return left

    def with_accelerators(self, specs: Iterable[AcceleratorSpec]) -> "System":
        return replace(self, accelerators={**self.accelerators, **{s.name: s for s in specs}})

    def with_capacities(self, specs: Iterable[CapacitySpec]) -> "System":
        return replace(self, capacities={**self.capacities, **{s.type: s.count for s in specs}})

    def with_perf(self, perfs: Iterable[PerfData]) -> "System":
        """Returns the system with data merged into the models'; creates the models it names."""
        models = {name: dict(by_acc) for name, by_acc in self.models.items()}
        for perf in perfs:
            models.setdefault(perf.name, {})[perf.acc] = perf
        return replace(self, models=models)

    def with_classes(self, specs: Iterable[ServiceClassSpec]) -> "System":
        """Returns the system with classes added. Priorities are stored as they take effect."""
        added = {
            spec.name: spec.model_copy(update={"priority": spec.effective_priority})
            for spec in specs
        }
        return replace(self, classes={**self.classes, **added})

    def with_servers(self, specs: Iterable[ServerSpec]) -> "System":
        return replace(self, servers={**self.servers, **{s.name: s for s in specs}})

    def with_model(self, name: str) -> "System":
        """Returns the system with a model, without performance data unless it exists already."""
        return self if name in self.models else replace(self, models={**self.models, name: {}})

    def perf_of(self, model: str, accelerator: str) -> PerfData:
        """Raises NotFound."""
        return lookup("accelerator", lookup("model", self.models, model), accelerator)

    def target_of(self, class_name: str, model: str) -> ModelTarget:
        """Raises NotFound."""
        target = lookup("service class", self.classes, class_name).target(model)
        if target is None:
            raise NotFound("model", model)
        return target

    def without_perf(self, model: str, accelerator: str) -> "System":
        rest = without(lookup("model", self.models, model), "accelerator", accelerator)
        return replace(self, models={**self.models, model: rest})

    def without_target(self, class_name: str, model: str) -> "System":
        self.target_of(class_name, model)
        service_class = self.classes[class_name]
        rest = [target for target in service_class.model_targets if target.model != model]
        return self.with_classes([service_class.model_copy(update={"model_targets": rest})])


def in_order(mapping: Mapping[str, T]) -> list[T]:
    """Returns the values, sorted by name."""
    return [mapping[name] for name in sorted(mapping)]


def lookup(kind: str, mapping: Mapping[str, T], name: str) -> T:
    """Returns the entity of that name. Raises NotFound, in the reference's words."""
    try:
        return mapping[name]
    except KeyError:
        raise NotFound(kind, name) from None


def without(mapping: Mapping[str, T], kind: str, name: str) -> dict[str, T]:
    """Returns a copy without one entity. Raises NotFound."""
    lookup(kind, mapping, name)
    return {key: value for key, value in mapping.items() if key != name}
