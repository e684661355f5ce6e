"""The state of a stateful optimizer, as one immutable value, and its records in a store. Pure.

A store holds small records, (kind, name) -> JSON; a change writes only the changed records.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from common.stores import Record
from optimizer.inferno_json import Body, Reading, encode_compact, read
from optimizer.spec import (
    AcceleratorSpec,
    Name,
    OptimizerSpec,
    PerfData,
    ServerSpec,
    ServiceClassSpec,
    SystemSpec,
)
from optimizer.system import System

Timestamp = Annotated[float, Field(ge=0, le=1e11)]  # s since 1970

_SINGLE = ""  # name of a record that is the only one of its kind


@dataclass(frozen=True, slots=True)
class SystemState:
    """A system; when each server's current allocation last changed (s since 1970); and the servers
    that the last solve allocated, because scaling to zero otherwise looks like no allocation."""

    system: System = field(default_factory=System)
    changed_at_s: Mapping[str, float] = field(default_factory=dict)
    allocated: frozenset[str] = frozenset()

    def dump(self) -> dict[str, Any]:
        """Returns the answer of GET /state."""
        return StateData(
            system=self.system.to_spec(),
            models=sorted(self.system.models),
            changed_at=dict(sorted(self.changed_at_s.items())),
            allocated=sorted(self.allocated),
        ).dump()


class StateData(Body):
    """The body of PUT /state, and the answer of GET."""

    system: SystemSpec
    models: list[Name] = Field(default_factory=list)  # also models without performance data
    changed_at: dict[str, Timestamp] = Field(default_factory=dict)
    allocated: list[Name] = Field(default_factory=list)

    def to_state(self) -> SystemState:
        system = System.from_spec(self.system)
        for model in self.models:
            system = system.with_model(model)
        return SystemState(
            system,
            {name: s for name, s in self.changed_at.items() if name in system.servers},
            frozenset(self.allocated) & system.servers.keys(),
        )


def next_state(old: SystemState, system: System, now_s: float) -> SystemState:
    """Returns the state after an edit. It records which current allocations changed, and drops the
    last solve's results for these servers."""
    changed_at = {n: at for n, at in old.changed_at_s.items() if n in system.servers}
    same = set(old.allocated)
    for name, server in system.servers.items():
        before = old.system.servers.get(name)
        if before is server:
            continue
        same.discard(name)
        if before is not None and before.current_alloc.shape() != server.current_alloc.shape():
            changed_at[name] = now_s
    return SystemState(system, changed_at, frozenset(same) & system.servers.keys())


def changes(old: SystemState, new: SystemState) -> list[Record]:
    """Returns the records that differ between two states."""
    before, after = _tables(old), _tables(new)
    if old.system.models is not new.system.models:
        before |= _model_tables(old.system)
        after |= _model_tables(new.system)
    return [record for kind in after for record in _table_changes(kind, before[kind], after[kind])]


def _table_changes(
    kind: str, old: Mapping[str, object], new: Mapping[str, object]
) -> Iterator[Record]:
    if old is new:
        return
    for name, value in new.items():
        if name not in old or (old[name] is not value and old[name] != value):
            yield Record(kind, name, _body(value))
    for name in old.keys() - new.keys():
        yield Record(kind, name, None)


def _body(value: object) -> str:
    return encode_compact(value.dump() if isinstance(value, Body) else value)


def _tables(state: SystemState) -> dict[str, Mapping[str, object]]:
    system = state.system
    return {
        "accelerator": system.accelerators,
        "capacity": system.capacities,
        "class": system.classes,
        "server": system.servers,
        "optimizer": {_SINGLE: system.optimizer},
        "changed_at": state.changed_at_s,
        "allocated": dict.fromkeys(state.allocated, True),
    }


def _model_tables(system: System) -> dict[str, Mapping[str, object]]:
    return {
        "model": dict.fromkeys(system.models, True),
        "perf": {
            encode_compact([model, accelerator]): perf
            for model, by_accelerator in system.models.items()
            for accelerator, perf in by_accelerator.items()
        },
    }


def from_records(records: Iterable[Record]) -> SystemState:
    """Returns the state that a store holds. Raises InvalidRequest if a record does not validate."""
    tables: dict[str, dict[str, Any]] = {}
    for kind, name, body in records:
        value = json.loads(body or "null")
        if model := _MODELS.get(kind):
            value = read(model, value, Reading.RECORD)  # accepts keys of another version
        tables.setdefault(kind, {})[name] = value
    models: dict[str, dict[str, PerfData]] = {name: {} for name in tables.get("model", {})}
    for perf in tables.get("perf", {}).values():
        models.setdefault(perf.name, {})[perf.acc] = perf
    return SystemState(
        System(
            accelerators=tables.get("accelerator", {}),
            capacities=tables.get("capacity", {}),
            models=models,
            classes=tables.get("class", {}),
            servers=tables.get("server", {}),
            optimizer=tables.get("optimizer", {}).get(_SINGLE, OptimizerSpec()),
        ),
        tables.get("changed_at", {}),
        frozenset(tables.get("allocated", {})),
    )


_MODELS: Mapping[str, type[Body]] = {
    "accelerator": AcceleratorSpec,
    "perf": PerfData,
    "class": ServiceClassSpec,
    "server": ServerSpec,
    "optimizer": OptimizerSpec,
}
