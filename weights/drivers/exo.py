"""The driver of an exo cluster: reads its state, posts the instance of a split, and measures it.

It follows the order of exo's own `bench/exo_bench.py`: delete all instances, post the new one,
watch its runners until all are ready, rest, warm up, and measure. exo does not check that ranges of
layers are contiguous, cover the model and fit a node, and an empty range crashes its runner, so
this module checks them. JSON is as in exo's src/exo/shared/types, 2026-06.
"""

import copy
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from weights.drivers import Ring
from weights.drivers.http import Http, HttpRefused
from weights.errors import EngineUnusable, TrialFailed
from weights.partition import Layers, ranges

PROMPT = "Tell me about the history of bridges, from the first ones to those of today."
REST_S = 1.0
READY, FAILED = "RunnerReady", "Failed"
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


@dataclass(slots=True)
class ExoDriver:
    """A `Driver` for exo. The last measured instance keeps running. `nodes` are the ids of nodes to
    use; empty means all. `replaces` lets running instances be deleted."""

    http: Http
    model: str
    nodes: tuple[str, ...] = ()
    replaces: bool = False
    generated_tokens: int = 128
    repeats: int = 3
    load_timeout_s: float = 600.0
    poll_s: float = 1.0
    ring: Ring = field(init=False)
    _preview: Preview = field(init=False)

    def __post_init__(self) -> None:
        state = self._get("/state")
        if state.get("instances") and not self.replaces:
            raise EngineUnusable(
                f"{len(state['instances'])} instances run on this cluster and would be measured "
                "along; delete them, or let them be deleted by --replace"
            )
        self._delete_instances()
        self._preview = self._previewed()
        self.ring = self._preview.ring(free_bytes_of(self._get("/state")))

    def measure(self, layers: Layers) -> float:
        self._delete_instances()
        body, runner_ids = placed(self._preview, layers)
        try:
            self.http.call("POST", "/instance", body)
        except HttpRefused as error:
            raise TrialFailed(f"exo refuses the instance: {error}") from None
        self._wait_until_ready(runner_ids)
        time.sleep(REST_S)
        self._generate()  # warm-up, because the first one is slower
        return median(self._generate() for _ in range(self.repeats))

    def finish(self, layers: Sequence[int]) -> str:
        lines = [
            f"{node} start_layer={start} end_layer={end}"
            for node, (start, end) in zip(self.ring.nodes, ranges(layers), strict=True)
        ]
        return "\n".join(lines)

    def _previewed(self) -> Preview:
        """Returns a preview. Retries, because freed memory is reported late."""
        nodes = self.nodes or tuple(self._get("/state/topology").get("nodes", ()))
        query: Json = {"model_id": self.model, "node_ids": list(nodes)}
        until_s = time.monotonic() + self.load_timeout_s
        while True:
            previews = self._get("/instance/previews", query).get("previews")
            try:
                return choose_preview(previews if isinstance(previews, list) else (), len(nodes))
            except EngineUnusable:
                if time.monotonic() >= until_s:
                    raise
            time.sleep(self.poll_s)

    def _delete_instances(self) -> None:
        """Delete all instances, and wait until they are gone."""
        until_s = time.monotonic() + self.load_timeout_s
        while instances := self._get("/state").get("instances"):
            for instance_id in instances:
                self.http.call("DELETE", f"/instance/{instance_id}", missing=None)
            if time.monotonic() >= until_s:
                raise EngineUnusable(f"instances are still there: {', '.join(instances)}")
            time.sleep(self.poll_s)

    def _wait_until_ready(self, runner_ids: Sequence[str]) -> None:
        """Wait until all runners are ready. Raises TrialFailed if one fails or takes too long."""
        until_s = time.monotonic() + self.load_timeout_s
        seen: set[str] = set()
        while time.monotonic() < until_s:
            tags = []
            for runner_id in runner_ids:
                found = self.http.call("GET", f"/state/runners/{runner_id}", missing={})
                tag, message = runner_state(found)
                if FAILED in tag or (runner_id in seen and not tag):
                    raise TrialFailed(f"a runner has failed: {message or 'it vanished'}")
                seen |= {runner_id} if tag else set()
                tags.append(tag)
            if all(tag == READY for tag in tags):
                return
            time.sleep(self.poll_s)
        raise TrialFailed(f"not ready within {self.load_timeout_s:g} s")

    def _generate(self) -> float:
        """Returns tokens/s of one stream, as exo measures it. The bench route never stops early."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": self.generated_tokens,
            "stream": False,
        }
        try:
            answer = self.http.call("POST", "/bench/chat/completions", body)
        except HttpRefused as error:
            raise TrialFailed(f"exo does not generate: {error}") from None
        stats = answer.get("generation_stats") if isinstance(answer, dict) else None
        tokens_per_s = stats.get("generation_tps") if isinstance(stats, dict) else None
        if not isinstance(tokens_per_s, int | float) or not tokens_per_s > 0:
            raise TrialFailed(f"exo says {tokens_per_s!r} tokens/s")
        return float(tokens_per_s)

    def _get(self, path: str, query: Json | None = None) -> Json:
        try:
            found = self.http.call("GET", path, query=query)
        except HttpRefused as error:
            raise EngineUnusable(f"exo refuses {path}: {error}") from None
        if not isinstance(found, dict):
            raise EngineUnusable(f"exo answers {path} with something that is no object")
        return found


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
