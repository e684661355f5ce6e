"""A cluster of exo that follows a script: its routes, its strictness and its delays, over HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]

LAYERS, MODEL, MODEL_BYTES = 16, "org/m-4bit", 1600
CARD = {
    "modelId": MODEL, "storageSize": {"inBytes": MODEL_BYTES}, "nLayers": LAYERS,
    "hiddenSize": 2048, "supportsTensor": True, "tasks": ["TextGeneration"],
    "backends": ["MlxMetal"],
}  # fmt: skip


@dataclass
class Cluster:
    """`layer_ms` of each node; the ring is in this order. One lock guards all."""

    layer_ms: dict[str, float]
    free_bytes: dict[str, int]
    instances: Json = field(default_factory=dict)
    runners: Json = field(default_factory=dict)
    polls: dict[str, int] = field(default_factory=dict)
    posted: list[Json] = field(default_factory=list)
    errors_first: int = 0  # previews that fail before one is given
    breaks: set[tuple[int, ...]] = field(default_factory=set)  # splits whose runners fail
    lock: threading.Lock = field(default_factory=threading.Lock)

    def preview(self, nodes: list[str]) -> Json:
        if self.errors_first > 0:
            self.errors_first -= 1
            return {"model_id": MODEL, "sharding": "Pipeline", "instance_meta": "MlxRing",
                    "instance": None, "error": "Not enough memory"}  # fmt: skip
        share, shards = LAYERS // len(nodes), {}
        for rank, node in enumerate(nodes):
            end = LAYERS if rank == len(nodes) - 1 else (rank + 1) * share
            shards[f"r-{node}"] = {"PipelineShardMetadata": {
                "modelCard": CARD, "deviceRank": rank, "worldSize": len(nodes),
                "startLayer": rank * share, "endLayer": end, "nLayers": LAYERS,
            }}  # fmt: skip
        instance = {
            "instanceId": "preview", "ephemeralPort": 50011,
            "hostsByNode": {node: [{"ip": "0.0.0.0", "port": 50011}] for node in nodes},
            "shardAssignments": {
                "modelId": MODEL, "nodeToRunner": {node: f"r-{node}" for node in nodes},
                # Not in the order of ranks, as no object has one.
                "runnerToShard": dict(reversed(shards.items())),
            },
        }  # fmt: skip
        return {"model_id": MODEL, "sharding": "Pipeline", "instance_meta": "MlxRing",
                "instance": {"MlxRingInstance": instance}, "error": None}  # fmt: skip

    def post(self, body: Json) -> None:
        instance = body["instance"]["MlxRingInstance"]
        self.posted.append(instance)
        self.instances[instance["instanceId"]] = body["instance"]
        for runner in instance["shardAssignments"]["runnerToShard"]:
            self.runners[runner] = {"RunnerLoading": {"layersLoaded": 0, "totalLayers": 5}}
            self.polls[runner] = 0

    def runner(self, runner_id: str) -> Json | None:
        """Ready at the third look, unless the split breaks."""
        if runner_id not in self.runners:
            return None
        self.polls[runner_id] += 1
        if self.polls[runner_id] < 3:
            found: Json = self.runners[runner_id]
            return found
        if self.split(self.posted[-1]) in self.breaks:
            return {"RunnerFailed": {"errorMessage": "out of memory"}}
        return {"RunnerReady": {}}

    def split(self, instance: Json) -> tuple[int, ...]:
        shards = [each["PipelineShardMetadata"]
                  for each in instance["shardAssignments"]["runnerToShard"].values()]  # fmt: skip
        shards.sort(key=lambda shard: shard["deviceRank"])
        at = 0
        for shard in shards:
            assert shard["startLayer"] == at < shard["endLayer"]
            at = shard["endLayer"]
        assert at == LAYERS
        return tuple(shard["endLayer"] - shard["startLayer"] for shard in shards)

    def tokens_per_s(self) -> float:
        split = self.split(self.posted[-1])
        return 1000 / sum(
            count * each for count, each in zip(split, self.layer_ms.values(), strict=True)
        )


@contextmanager
def served(cluster: Cluster) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            with cluster.lock:
                self._answer(*_get(cluster, url.path, parse_qs(url.query)))

        def do_DELETE(self) -> None:
            with cluster.lock:
                instance_id = self.path.removeprefix("/instance/")
                is_there = cluster.instances.pop(instance_id, None) is not None
                if not cluster.instances:
                    cluster.runners.clear()
                self._answer(200 if is_there else 404, {"message": "Command received."})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with cluster.lock:
                if self.path == "/instance":
                    assert [*body] == ["instance"], "unknown keys are refused"
                    cluster.post(body)
                    self._answer(200, {"message": "Command received.", "command_id": "c"})
                elif not cluster.instances:
                    self._answer(404, {"error": {"message": "no instance"}})
                else:
                    stats = {"generation_tps": cluster.tokens_per_s(), "prompt_tps": 1.0}
                    self._answer(200, {"choices": [], "generation_stats": stats})

        def _answer(self, status: int, body: Any) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *arguments: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="exo")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _get(cluster: Cluster, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
    if path == "/state":
        memory = {
            node: {"ramTotal": {"inBytes": 10**6}, "ramAvailable": {"inBytes": free}}
            for node, free in cluster.free_bytes.items()
        }
        return 200, {"instances": cluster.instances, "nodeMemory": memory}
    if path == "/state/topology":
        return 200, {"nodes": [*cluster.layer_ms], "connections": {}}
    if path == "/instance/previews":
        assert query["model_id"] == [MODEL]
        return 200, {"previews": [cluster.preview(query["node_ids"])]}
    if path.startswith("/state/runners/"):
        found = cluster.runner(path.removeprefix("/state/runners/"))
        return (404, {"detail": "Not found"}) if found is None else (200, found)
    return 404, {"detail": "Not found"}
