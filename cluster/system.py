"""`SystemDocument`: the parts of the optimizer's document that a cluster reads.

These are names and the speeds of models on accelerators; the optimizer validates the rest. Keys may
be in any case, as in the optimizer. Immutable: any thread.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import ConfigFaulty
from common.plain_yaml import plain_json

Json = dict[str, Any]

MAX_LOAD = 1e15
MAX_CENTS_PER_HOUR = 1e9  # the proxy's bound, above which it refuses its whole file

# The keys that this module reads, in the spelling that it uses.
_KEYS = """
    system acceleratorData accelerators modelData models serviceClassData serviceClasses serverData
    servers optimizerData optimizer capacityData name acc accCount class model modelTargets priority
    maxBatchSize atTokens decodeParms prefillParms perfParms serviceCurve alpha beta gamma delta
    cost slo-ttft slo-itl slo-tps minNumReplicas maxNumReplicas keepAccelerator currentAlloc
    desiredAlloc load arrivalRate avgInTokens avgOutTokens priceSolver saturationPolicy
"""
_NAMES = {name.lower(): name for name in _KEYS.split()}


@dataclass(frozen=True, slots=True)
class SystemDocument:
    """The optimizer's document. `parts` is the content of `system`; mappings are by name."""

    parts: Json
    servers: Mapping[str, Json] = field(default_factory=dict)
    accelerators: Mapping[str, Json] = field(default_factory=dict)
    classes: Mapping[str, Json] = field(default_factory=dict)
    perf: Mapping[tuple[str, str], Json] = field(default_factory=dict)
    """Performance data by model and accelerator."""

    def target(self, server: str) -> Json:
        """Returns the service levels of a server; empty without any."""
        spec = self.servers[server]
        listed = self.classes.get(self.class_of(server), {}).get("modelTargets") or []
        return next((t for t in reversed(listed) if t.get("model") == spec.get("model")), {})

    def class_of(self, server: str) -> str:
        return str(self.servers[server].get("class") or "Free")

    def load(self, server: str) -> Json:
        """Returns the load that the document expects for a server; empty if it gives none."""
        return (self.servers[server].get("currentAlloc") or {}).get("load") or {}

    def may_sleep(self, server: str) -> bool:
        """Returns whether a server may scale to 0."""
        return not self.servers[server].get("minNumReplicas")

    def cents_per_hour(self, server: str, accelerator: str) -> float:
        """Returns the cost of one replica in cents per hour."""
        perf = self.perf.get((str(self.servers[server].get("model")), accelerator), {})
        unit_cost = self.accelerators.get(accelerator, {}).get("cost")
        count = perf.get("accCount") or 1
        if isinstance(unit_cost, int | float) and isinstance(count, int | float):
            bounded = [max(0.0, min(each, MAX_CENTS_PER_HOUR)) for each in (unit_cost, count)]
            return min(math.prod(bounded), MAX_CENTS_PER_HOUR)
        return 0.0

    def answer_tokens(self, server: str) -> float:
        tokens = self.load(server).get("avgOutTokens")
        return float(tokens) if isinstance(tokens, int | float) else 0.0


def read_system(content: bytes) -> SystemDocument:
    """Parses a document. Raises ConfigFaulty."""
    try:
        parts = _with_known_keys(plain_json(content))["system"]
        document = SystemDocument(
            parts,
            _by_name(parts, "serverData", "servers"),
            _by_name(parts, "acceleratorData", "accelerators"),
            _by_name(parts, "serviceClassData", "serviceClasses"),
            {
                (str(each["name"]), str(each["acc"])): each
                for each in _listed(parts, "modelData", "models")
            },
        )
        for name in document.servers:
            _check_load(name, document.load(name))
        return document
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigFaulty(
            f"  - system: the file is not a document for POST /optimizeOne ({error!r:.200}); "
            "docs/optimizer.md has an example."
        ) from None


def _check_load(server: str, load: Json) -> None:
    """Raises ValueError for an invalid load. Unlike the optimizer, a cluster needs valid ones."""
    for key in ("arrivalRate", "avgInTokens", "avgOutTokens"):
        value = load.get(key) or 0
        if not isinstance(value, int | float) or not 0 <= value <= MAX_LOAD:
            raise ValueError(f"{key} of {server} is {value!r:.40}; give 0 to {MAX_LOAD:g}")


def _listed(parts: Json, group: str, kind: str) -> list[Json]:
    found: list[Json] = (parts.get(group) or {}).get(kind) or []
    return found


def _by_name(parts: Json, group: str, kind: str) -> dict[str, Json]:
    return {str(each["name"]): each for each in _listed(parts, group, kind)}


def _with_known_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_NAMES.get(key.lower(), key): _with_known_keys(each) for key, each in value.items()}
    return [_with_known_keys(each) for each in value] if isinstance(value, list) else value
