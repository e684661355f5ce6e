"""Writes the cluster's file and the optimizer's document, which the controller reads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import write_whole
from lab.demo.cluster.story import ACCELERATOR, MAX_REPLICAS, MODEL_NAME, SERVER, Story

SPEED_KEYS = ("decodeParms", "prefillParms", "serviceCurve")


@dataclass(frozen=True, slots=True)
class Addresses:
    """The ports on loopback on which the demo's processes listen."""

    optimizer: int
    proxy: int
    controller: int

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"


def write_cluster(
    folder: Path, story: Story, actuator: dict[str, Any], addresses: Addresses
) -> Path:
    """Writes both files. Returns the path of the cluster's file, for `python -m cluster`."""
    write_whole(folder / "system.json", json.dumps({"system": _system(story)}, indent=1))
    server: dict[str, Any] = {"settings": story.backend.settings}
    if story.backend.model is not None:
        server["model"] = story.backend.model
    path = folder / "cluster.yaml"
    keys = {
        "system": "system.json",
        "optimizer": addresses.url(addresses.optimizer),
        "listen": f"127.0.0.1:{addresses.controller}",
        "period_s": story.period_s,
        "rollout_s": min(1.0, story.period_s / 2),
        "stabilization_s": story.stabilization_s,
        "scale_down_s": story.scale_down_s,
        "actuator": actuator,
        "upstreams_file": "upstreams.yaml",
        "journal": "cluster.jsonl",
        "tune": story.tunes,
        "proxy": {"url": addresses.url(addresses.proxy), "token_file": "token"},
        "servers": {SERVER: server},
        "accelerators": {ACCELERATOR: {"resources": {"CPU": 1}}},
    }
    write_whole(path, json.dumps(keys, indent=1))  # JSON is valid YAML
    return path


def _system(story: Story) -> dict[str, Any]:
    load = {
        "arrivalRate": 60 * story.rate_per_s,
        "avgInTokens": story.out_tokens,
        "avgOutTokens": story.out_tokens,
    }
    model = {
        "name": MODEL_NAME,
        "acc": ACCELERATOR,
        "maxBatchSize": story.user_rows,
        "atTokens": story.out_tokens,
    } | {key: story.backend.perf[key] for key in SPEED_KEYS if key in story.backend.perf}
    target = {"model": MODEL_NAME, "slo-ttft": story.planned_ttft_ms, "slo-itl": story.slo_itl_ms}
    server = {
        "name": SERVER,
        "class": "demo",
        "model": MODEL_NAME,
        "minNumReplicas": 1,
        "maxNumReplicas": MAX_REPLICAS,
        "maxBatchSize": story.user_rows,
        "currentAlloc": {"load": load},
    }
    return {
        "acceleratorData": {"accelerators": [{"name": ACCELERATOR, "type": "core", "cost": 1.0}]},
        "capacityData": {"count": [{"type": "core", "count": MAX_REPLICAS}]},
        "modelData": {"models": [model]},
        "serviceClassData": {
            "serviceClasses": [{"name": "demo", "priority": 1, "modelTargets": [target]}]
        },
        "serverData": {"servers": [server]},
        "optimizerData": {"optimizer": {}},
    }
