"""Finds the servers that can be considered, and refuses the others. Pure: any thread."""

from dataclasses import dataclass

from optimizer.measured import LoadSpec
from optimizer.spec import DEFAULT_CLASS, LEAST_RATE, ModelTarget, ServerSpec
from optimizer.system import System, Targets


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason to leave out a server, or one accelerator for it: `best` misses `bound`."""

    code: str
    message: str
    bound: float | None = None
    best: float | None = None


@dataclass(frozen=True, slots=True)
class Eligible:
    """A server that can be considered, with its target and the priority of its class."""

    server: ServerSpec
    target: ModelTarget
    priority: int

    @property
    def is_idle(self) -> bool:
        """Whether nothing arrives. Arrivals without output tokens are work: each has a prefill."""
        return self.server.current_alloc.load.arrival_rate < LEAST_RATE

    @property
    def out_tokens(self) -> int:
        return max(self.server.current_alloc.load.avg_out_tokens, 1)

    @property
    def demand_per_s(self) -> float:
        """Requests per second to plan for: arrivals, or a throughput target if that is higher."""
        arrivals_per_s = self.server.current_alloc.load.arrival_rate / 60
        return max(arrivals_per_s, self.target.slo_tps / self.out_tokens)


def eligible(system: System, server: ServerSpec, targets: Targets) -> Eligible | Refusal:
    """Returns a refusal if too little is known about a server, or its load is negative."""
    if refusal := negative_load(server.current_alloc.load):
        return refusal
    if server.model not in system.models:
        return Refusal("model", f"model {server.model or '(none)'} is not known")
    class_name = server.class_name or DEFAULT_CLASS
    service_class = system.classes.get(class_name)
    if service_class is None:
        return Refusal("class", f"service class {class_name} is not known")
    target = targets.get((class_name, server.model))
    if target is None:
        return Refusal(
            "class", f"service class {class_name} has no target for model {server.model}"
        )
    return Eligible(server, target, service_class.effective_priority)


def negative_load(load: LoadSpec) -> Refusal | None:
    for name, value in (
        ("arrivalRate", load.arrival_rate),
        ("avgInTokens", load.avg_in_tokens),
        ("avgOutTokens", load.avg_out_tokens),
    ):
        if value < 0:
            return Refusal("load", f"load: {name} is {value:g}; it must not be negative", 0, value)
    return None
