"""The reference's recorded answers, and the reasons why ours may differ from them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.candidates.eligibility import Eligible, eligible
from optimizer.inferno_json import read
from optimizer.spec import SystemData
from optimizer.system import System

DATA = Path(__file__).parents[1] / "data" / "optimizer"

COST, ITL, TTFT, TTFT_MS, MAX_RATE = 1e-5, 1e-4, 2e-4, 0.05, 5e-4  # the reference is float32

NO_OUTPUT = "arrivals with avgOutTokens=0 are taken for idleness; they are prefills"
TPS_ONLY = "a throughput target hides arrivals; the larger demand counts"
CONSTANT_ITL = "a constant ITL (batch 1 or beta 0) is compared the wrong way round"
NO_PREFILL = "without input tokens gamma is still subtracted from the service time"

REFUSED = {
    "q01": "a body without a system would replace what is stored by nothing",
    "q16": "a negative minimum of replicas is taken for a negative cost",
    "q36": "fractional integers are refused there too",
    "q37": "so are integers written as 2.0",
}
ANSWERED = {  # case -> servers allocated here; the reference fails as a whole
    "q25": {"s1"},  # one server without candidates makes its MILP infeasible
    "q26": {"s1", "s2"},  # and so does one that scales to zero
    "q29": set(),  # an unknown model crashes it
    "q30": set(),  # no capacity crashes it
    "q33": {"s1"},  # CPLEX is not installed
    "q34": set(),  # service times of 0 make it loop for ever
}


@dataclass(frozen=True)
class Case:
    name: str
    input: dict[str, Any]
    output: dict[str, Any]
    note: str
    unstable: bool
    milp: dict[str, Any] | None

    @property
    def system(self) -> System:
        return System.from_spec(read(SystemData, self.input).system)


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def cases() -> list[Case]:
    files = sorted((DATA / "systems").glob("*.json"))
    return [_case(path.stem, json.loads(path.read_text())) for path in files]


def _case(name: str, record: dict[str, Any]) -> Case:
    return Case(
        name, record["input"], record["output"], record["note"], record["unstable"],
        record.get("milp"),
    )  # fmt: skip


def deliberate_difference(system: System, server_name: str) -> str | None:
    """Why the reference's candidates of this server are wrong, if they are."""
    server = system.servers[server_name]
    item = eligible(system, server, system.targets())
    if not isinstance(item, Eligible):
        return None
    load_ = server.current_alloc.load
    if load_.arrival_rate > 0 and load_.avg_out_tokens == 0:
        return NO_OUTPUT
    if 0 < item.target.slo_tps / item.out_tokens < load_.arrival_rate / 60:
        return TPS_ONLY
    if load_.arrival_rate > 0 and load_.avg_in_tokens == 0:
        return NO_PREFILL
    perfs = system.models[server.model].values()
    flat = any(p.decode_parms.beta == 0 and not p.iteration_parms for p in perfs)
    batches = [
        server.max_batch_size or max(p.max_batch_size * p.at_tokens // item.out_tokens, 1)
        for p in perfs
    ]
    if item.target.slo_itl > 0 and (flat or 1 in batches):
        return CONSTANT_ITL
    return None
