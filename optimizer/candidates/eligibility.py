"""Which accelerators each server may run on, laid out as arrays over (server, accelerator) pairs.

Pure: any thread.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from optimizer.model.latency import FloatArray, IntArray
from optimizer.spec import DEFAULT_CLASS, AcceleratorSpec, ModelTarget, PerfData, ServerSpec
from optimizer.system import System

UNBOUNDED = -1


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a server, or one accelerator for it, is out. `bound` and `best` say by how much."""

    code: str
    message: str
    bound: float | None = None
    best: float | None = None


@dataclass(frozen=True, slots=True)
class Eligible:
    """A server that may be considered, with what its class and model say about it."""

    server: ServerSpec
    target: ModelTarget
    priority: int

    @property
    def is_idle(self) -> bool:
        """No arrivals. Arrivals without output tokens are work: a prefill each."""
        return self.server.current_alloc.load.arrival_rate == 0

    @property
    def out_tokens(self) -> int:
        return max(self.server.current_alloc.load.avg_out_tokens, 1)

    @property
    def demand_per_s(self) -> float:
        """Requests per second: what arrives, or more if a throughput target asks for more."""
        arrivals_per_s = self.server.current_alloc.load.arrival_rate / 60
        return max(arrivals_per_s, self.target.slo_tps / self.out_tokens)


@dataclass(frozen=True, slots=True)
class Option:
    """An accelerator that has performance data for a model."""

    accelerator: AcceleratorSpec
    perf: PerfData
    row: int  # in PerfTable.columns


class PerfTable:
    """Every usable (model, accelerator) as a row of numbers, so that pairs are gathered, not
    built one by one. Immutable after construction: any thread."""

    COLUMNS = ("iterates", "alpha", "beta", "gamma", "delta", "max_batch", "at_tokens")

    def __init__(self, system: System) -> None:
        self._options: dict[str, tuple[Option, ...]] = {}
        rows: list[tuple[float, ...]] = []
        self.all: list[Option] = []
        for model, by_accelerator in system.models.items():
            options = []
            for name, perf in by_accelerator.items():
                accelerator = system.accelerators.get(name)
                if accelerator is not None:
                    options.append(Option(accelerator, perf, len(rows)))
                    rows.append(perf_row(perf))
            self._options[model] = tuple(options)
            self.all += options
        self.columns: FloatArray = np.array(rows, dtype=np.float64).reshape(-1, len(self.COLUMNS)).T

    def options(self, server: ServerSpec) -> Iterable[Option]:
        """Those of its model, or only the one it must keep."""
        options = self._options.get(server.model, ())
        if server.keep_accelerator and server.current_alloc.accelerator:
            keep = server.current_alloc.accelerator
            return [option for option in options if option.accelerator.name == keep]
        return options


def perf_row(perf: PerfData) -> tuple[float, ...]:
    """The numbers of `PerfTable.COLUMNS`."""
    if perf.uses_iterations and perf.perf_parms is not None:
        p = perf.perf_parms
        parameters = (1.0, p.alpha, p.beta, p.gamma, 0.0)
    else:
        d, f = perf.decode_parms, perf.prefill_parms
        parameters = (0.0, d.alpha, d.beta, f.gamma, f.delta)
    return (*parameters, float(perf.max_batch_size), float(perf.at_tokens))


def eligible(system: System, server: ServerSpec) -> Eligible | Refusal:
    """Whether the system knows enough about a server, and its load makes sense."""
    load = server.current_alloc.load
    for name, value in (
        ("arrivalRate", load.arrival_rate),
        ("avgInTokens", load.avg_in_tokens),
        ("avgOutTokens", load.avg_out_tokens),
    ):
        if value < 0:
            return Refusal("load", f"load: {name} is {value:g}; it must not be negative", 0, value)
    if server.model not in system.models:
        return Refusal("model", f"model {server.model or '(none)'} is not known")
    class_name = server.class_name or DEFAULT_CLASS
    service_class = system.classes.get(class_name)
    if service_class is None:
        return Refusal("class", f"service class {class_name} is not known")
    target = service_class.target(server.model)
    if target is None:
        return Refusal(
            "class", f"service class {class_name} has no target for model {server.model}"
        )
    return Eligible(server, target, service_class.effective_priority)


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs of all servers with traffic. `server` and `option` index into what made them."""

    server: IntArray
    option: IntArray
    arrival_per_s: FloatArray
    demand_per_s: FloatArray
    in_tokens: FloatArray
    out_tokens: FloatArray
    batch_override: FloatArray
    queue_override: FloatArray  # UNBOUNDED where the model's default applies
    min_replicas: FloatArray
    max_replicas: FloatArray  # UNBOUNDED where none is set
    ttft_ms: FloatArray
    itl_ms: FloatArray
    tps: FloatArray


def gather(servers: list[Eligible], table: PerfTable) -> Pairs:
    """Lay out every (server, option) pair of servers that have traffic."""
    rows = np.array([_server_row(item) for item in servers], dtype=np.float64).reshape(-1, 11)
    options = [[option.row for option in table.options(item.server)] for item in servers]
    server = np.repeat(np.arange(len(servers)), [len(some) for some in options])
    flat = np.array([row for some in options for row in some], dtype=np.int64)
    return Pairs(server, flat, *rows[server].T)


def _server_row(item: Eligible) -> tuple[float, ...]:
    server, target, load = item.server, item.target, item.server.current_alloc.load
    return (
        load.arrival_rate / 60,
        item.demand_per_s,
        load.avg_in_tokens,
        item.out_tokens,
        server.max_batch_size,
        UNBOUNDED if server.max_queue_size is None else server.max_queue_size,
        server.min_num_replicas,
        UNBOUNDED if server.max_num_replicas is None else server.max_num_replicas,
        target.slo_ttft,
        target.slo_itl,
        target.slo_tps,
    )
