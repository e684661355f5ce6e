"""Builds the optimizer's question from a cluster's state, and reads its answer.

A held server is in the question unchanged, on its accelerator with exactly its replicas, so that no
other server gets its cards. The rows of a process are fixed when it starts, so a running server is
planned with its present rows.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cluster.controller.demand import OfferedLoad
from cluster.controller.optimizer import AllocationReply, OptimizerReply
from cluster.controller.rollout import Plan
from cluster.controller.sleep import StartForecast
from cluster.replicas import Group
from cluster.system import Json, SystemDocument

LATENCIES = ("slo-ttft", "slo-itl")
FLAGS = {  # defaults, which the document may override
    "priceSolver": True,  # plans of nearly the least cost if cards are scarce
    # If cards run short, a server gets the cards that are left. Otherwise it would not change at
    # all when the load exceeds all cards.
    "saturationPolicy": "PriorityRoundRobin",
}
ClassModel = tuple[str, str]
"""A service class and a model in it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The contents of a question.

    `plan` has the replicas that run or will run; `perf` the current speeds, by model and
    accelerator; `held` the servers that must not change; `unsure` the servers that must not get
    fewer replicas; `awake` the servers that need at least one. `slowness` has factors on the
    document's service levels, by class and model.
    """

    plan: Plan
    loads: Mapping[str, OfferedLoad]
    perf: Mapping[tuple[str, str], Json]
    held: Collection[str] = ()
    unsure: Collection[str] = ()
    awake: Collection[str] = ()
    slowness: Mapping[ClassModel, float] = field(default_factory=dict)

    def groups(self, server: str) -> list[tuple[Group, int]]:
        """Returns a server's groups that have replicas, with their numbers, the largest first."""
        found = [(g, n) for g, n in self.plan.items() if g.server == server and n]
        return sorted(found, key=lambda each: (-each[1], each[0]))

    def num_replicas(self, server: str) -> int:
        return sum(number for _, number in self.groups(server))


def question(system: SystemDocument, standing: Standing) -> Json:
    """Returns the body of POST /optimizeOne for a plan."""
    renamed, servers = [], []
    targets: dict[str, list[Json]] = {
        name: [_at_speed(standing, name, target) for target in each.get("modelTargets") or []]
        for name, each in system.classes.items()
    }
    for name, spec in system.servers.items():
        entry = _server(system, standing, name)
        if standing.groups(name) and not spec.get("maxBatchSize"):
            # A model of its own, because other servers may run this model with other rows.
            own_name = f"{spec.get('model')} of {name}"
            renamed += _renamed_perf(standing, name, str(spec.get("model")), own_name)
            if target := system.target(name):
                of_class = system.class_of(name)
                target = _at_speed(standing, of_class, target)
                targets.setdefault(of_class, []).append({**target, "model": own_name})
            entry["model"] = own_name
        servers.append(entry)
    perf = [standing.perf.get(key, each) for key, each in system.perf.items()]
    classes = [{**each, "modelTargets": targets[name]} for name, each in system.classes.items()]
    flags = system.parts.get("optimizerData") or {}
    return {
        **system.parts,
        "modelData": {"models": perf + renamed},
        "serviceClassData": {"serviceClasses": classes},
        "serverData": {"servers": servers},
        "optimizerData": {**flags, "optimizer": FLAGS | (flags.get("optimizer") or {})},
    }


def latency_question(system: SystemDocument, standing: Standing) -> Json:
    """Returns the body of POST /optimizeOne that asks for the latencies of running replicas. Their
    servers are held, without service levels or limits on cards; others are left out."""
    held = [name for name in system.servers if standing.groups(name)]
    held_standing = Standing(standing.plan, standing.loads, standing.perf, held)
    body = question(system, held_standing)
    classes = [
        {**each, "modelTargets": [{"model": target["model"]} for target in each["modelTargets"]]}
        for each in body["serviceClassData"]["serviceClasses"]
    ]
    servers = [each for each in body["serverData"]["servers"] if each["name"] in held]
    return body | {
        "serviceClassData": {"serviceClasses": classes},
        "serverData": {"servers": servers},
        "optimizerData": {"optimizer": {"unlimited": True}},
    }


def groups_of(server: str, allocation: AllocationReply) -> dict[Group, int]:
    """Returns the groups of an allocation, with their numbers of replicas."""
    return {
        Group(server, part.accelerator, part.max_batch): part.num_replicas
        for part in allocation.each_part
    }


def _server(system: SystemDocument, standing: Standing, name: str) -> Json:
    spec, load = dict(system.servers[name]), standing.loads[name].as_json()
    spec.pop("desiredAlloc", None)
    if name in standing.awake:
        spec["minNumReplicas"] = 1
    groups = standing.groups(name)
    if not groups:
        return spec | {"currentAlloc": {"load": load}}
    group, count = groups[0][0], standing.num_replicas(name)
    current = {
        "accelerator": group.accelerator,
        "numReplicas": count,
        "maxBatch": group.user_rows,
        "cost": system.cents_per_hour(name, group.accelerator) * count,
        "load": load,
    }
    spec["currentAlloc"] = current
    if name in standing.held:
        spec |= {"keepAccelerator": True, "minNumReplicas": count, "maxNumReplicas": count}
    elif name in standing.unsure:
        limit = spec.get("maxNumReplicas")
        least = count if limit is None else min(count, limit)
        spec["minNumReplicas"] = max(least, spec.get("minNumReplicas") or 0)
    return spec


def _at_speed(standing: Standing, of_class: str, target: Json) -> Json:
    """Returns a target with levels that the machines can meet at their present speed."""
    times = standing.slowness.get((of_class, str(target.get("model"))), 1.0)
    levels = {key: times * value for key in LATENCIES
              if isinstance(value := target.get(key), int | float)}  # fmt: skip
    return target | levels


def _renamed_perf(standing: Standing, server: str, model: str, own_name: str) -> list[Json]:
    """Returns the speeds of a server's model under `own_name`. On accelerators where the server
    runs, they have the rows of its processes; on others, the rows of the document."""
    rows = {group.accelerator: group.user_rows for group, _ in standing.groups(server)}
    out_tokens = standing.loads[server].out_tokens
    found = []
    for (name, accelerator), each in standing.perf.items():
        if name == model:
            copy = {**each, "name": own_name}
            if accelerator in rows:
                copy |= {"maxBatchSize": rows[accelerator], "atTokens": out_tokens}
            found.append(copy)
    return found


class ReplicaNeeds:
    """Remembers when the optimizer last wanted as many replicas of a server as there are.
    Controller thread only; the rest of this module is pure.

    Near a bound of the levels, plans waver from one cycle to the next. To start a replica again
    takes longer than to keep it for the time of a start.
    """

    def __init__(self) -> None:
        self._needed_s: dict[str, float] = {}

    def lost_early(
        self,
        answer: OptimizerReply,
        standing: Standing,
        asleep: Collection[str],
        starts: Mapping[str, StartForecast],
        at_s: float,
    ) -> set[str]:
        """Returns the servers that would lose replicas that were needed less than the time of a
        start ago. Leaves out servers that sleep, and those that the question let lose none, because
        the answer does not say what these need."""
        early = set()
        for name, allocation in answer.allocations.items():
            if name in standing.held or name in standing.unsure or name in asleep:
                continue
            start_s = starts.get(name, StartForecast()).longest_s or 0.0
            if sum(groups_of(name, allocation).values()) >= standing.num_replicas(name):
                self._needed_s[name] = at_s
            elif at_s - self._needed_s.get(name, -math.inf) < start_s:
                early.add(name)
        return early
