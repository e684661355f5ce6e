"""Turns exo's preview of an instance into the instance of a split. Pure.

exo does not check that ranges are contiguous, cover the model and fit a node, and an empty range
crashes its runner, so this module checks them. JSON is as in exo's src/exo/shared/types, 2026-06.
"""

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weights.drivers import Ring
from weights.errors import EngineUnusable
from weights.partition import Layers, ranges

RING, SHARD = "MlxRingInstance", "PipelineShardMetadata"
MEMORY_FOR_LAYERS = 0.9  # share of a node's free memory; the rest is for KV cache and workspace

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Preview:
    """exo's placement of a model as a pipeline over nodes, in the order of their ranks."""

    instance: Json  # the object under the key RING
    nodes: tuple[str, ...]
    runners: tuple[str, ...]
    num_layers: int
    model_bytes: int

    def ring(self, free_bytes: Mapping[str, int]) -> Ring:
        """Returns the ring. `free_bytes` is each node's free memory while nothing is loaded."""
        layer_bytes = max(1, self.model_bytes // self.num_layers)
        room = (int(MEMORY_FOR_LAYERS * free_bytes.get(node, 0)) for node in self.nodes)
        most = tuple(min(self.num_layers, each // layer_bytes) for each in room)
        return Ring(self.nodes, self.num_layers, most)


def choose_preview(previews: Sequence[Any], num_nodes: int) -> Preview:
    """Returns the pipeline over a ring of `num_nodes`. Raises EngineUnusable."""
    reasons = []
    for each in previews:
        if not isinstance(each, dict):
            continue
        if each.get("error") is not None:
            reasons.append(str(each["error"])[:200])
            continue
        instance = each.get("instance")
        if each.get("sharding") == "Pipeline" and isinstance(instance, dict) and RING in instance:
            preview = read_preview(instance[RING])
            if len(preview.nodes) == num_nodes:
                return preview
    why = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
    raise EngineUnusable(f"exo offers no pipeline over a ring of {num_nodes} nodes{why}")


def read_preview(instance: Any) -> Preview:
    """Parses an instance. Raises EngineUnusable if it does not match exo's API."""
    try:
        assignments = instance["shardAssignments"]
        node_of = {runner: node for node, runner in assignments["nodeToRunner"].items()}
        shards = {runner: shard[SHARD] for runner, shard in assignments["runnerToShard"].items()}
        runners = sorted(shards, key=lambda runner: int(shards[runner]["deviceRank"]))
        first = shards[runners[0]]
        if [shards[runner]["deviceRank"] for runner in runners] != [*range(len(runners))]:
            raise ValueError("ranks are not consecutive")
        return Preview(
            instance=instance,
            nodes=tuple(node_of[runner] for runner in runners),
            runners=tuple(runners),
            num_layers=int(first["nLayers"]),
            model_bytes=int(first["modelCard"]["storageSize"]["inBytes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EngineUnusable(
            f"exo's preview cannot be read ({type(error).__name__}: {error}); this driver knows "
            "the API of 2026-06"
        ) from None


def placed(preview: Preview, layers: Layers) -> tuple[Json, tuple[str, ...]]:
    """Returns the body with the instance, under new ids, that gives each rank its number of layers,
    and the ids of the runners."""
    assert len(layers) == len(preview.nodes)
    assert sum(layers) == preview.num_layers
    assert min(layers) >= 1
    instance = copy.deepcopy(preview.instance)
    runner_ids = tuple(str(uuid.uuid4()) for _ in layers)
    assignments = instance["shardAssignments"]
    shards = [assignments["runnerToShard"][runner][SHARD] for runner in preview.runners]
    for shard, (start, end) in zip(shards, ranges(layers), strict=True):
        shard |= {"startLayer": start, "endLayer": end}
    named = zip(runner_ids, shards, strict=True)
    assignments["runnerToShard"] = {runner: {SHARD: shard} for runner, shard in named}
    assignments["nodeToRunner"] = dict(zip(preview.nodes, runner_ids, strict=True))
    instance["instanceId"] = str(uuid.uuid4())
    return {"instance": {RING: instance}}, runner_ids


def free_bytes_of(state: Any) -> dict[str, int]:
    """Returns free memory by node, from exo's `/state`."""
    memory = state.get("nodeMemory") if isinstance(state, dict) else None
    found = {}
    for node, each in memory.items() if isinstance(memory, dict) else ():
        available = each.get("ramAvailable") if isinstance(each, dict) else None
        if isinstance(available, dict) and isinstance(available.get("inBytes"), int):
            found[node] = available["inBytes"]
    return found


def runner_state(value: Any) -> tuple[str, str]:
    """Returns the tag of a runner's state, such as RunnerReady, and its error message."""
    if not isinstance(value, dict) or len(value) != 1:
        return "", ""
    ((tag, details),) = value.items()
    message = details.get("errorMessage") if isinstance(details, dict) else None
    return tag, str(message or "")[:300]
