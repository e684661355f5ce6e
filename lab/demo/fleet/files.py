"""Writes the cluster's file and the optimizer's document, which the controller reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import write_whole
from lab.demo.cluster.files import SPEED_KEYS, Addresses
from lab.demo.fleet.members import OUT_TOKENS, PLANNED_TTFT_MS, Member

ACCELERATOR = "share"  # a share of a core
IDLE_S = 30.0


def write_fleet(
    folder: Path, members: Sequence[Member], period_s: float, addresses: Addresses
) -> Path:
    """Writes both files. Returns the path of the cluster's file, for `python -m cluster`."""
    write_whole(folder / "system.json", json.dumps({"system": _system(members)}, indent=1))
    most = sum(each.most_replicas for each in members)
    keys = {
        "system": "system.json",
        "optimizer": addresses.url(addresses.optimizer),
        "listen": f"127.0.0.1:{addresses.controller}",
        "period_s": period_s,
        "rollout_s": 0.5,
        "stabilization_s": 2 * period_s,
        "scale_down_s": 4 * period_s,
        "actuator": {
            "kind": "local",
            "folder": str(folder / "replicas"),
            "capacity": {"CPU": most},
            "leave_s": 5,
        },
        "upstreams_file": "upstreams.yaml",
        "journal": "cluster.jsonl",
        "proxy": {"url": addresses.url(addresses.proxy), "token_file": "token"},
        "servers": {each.name: _keys(each) for each in members},
        "accelerators": {ACCELERATOR: {"resources": {"CPU": 1}}},
    }
    path = folder / "cluster.yaml"
    write_whole(path, json.dumps(keys, indent=1))  # JSON is valid YAML
    return path


def _keys(member: Member) -> dict[str, Any]:
    sleeps = {} if member.least_replicas else {"idle_s": IDLE_S}
    return {**member.keys, "models": [member.name], **sleeps}


def _system(members: Sequence[Member]) -> dict[str, Any]:
    most = sum(each.most_replicas for each in members)
    return {
        "acceleratorData": {"accelerators": [{"name": ACCELERATOR, "type": "core", "cost": 1.0}]},
        "capacityData": {"count": [{"type": "core", "count": most}]},
        "modelData": {"models": [_speed(each) for each in members]},
        "serviceClassData": {
            "serviceClasses": [
                {"name": "fleet", "priority": 1, "modelTargets": list(map(_target, members))}
            ]
        },
        "serverData": {"servers": [_server(each) for each in members]},
        "optimizerData": {"optimizer": {}},
    }


def _speed(member: Member) -> dict[str, Any]:
    known = {key: member.perf[key] for key in SPEED_KEYS if key in member.perf}
    shape = {"maxBatchSize": member.rows, "atTokens": OUT_TOKENS}
    return {"name": member.name, "acc": ACCELERATOR, **shape, **known}


def _target(member: Member) -> dict[str, Any]:
    return {"model": member.name, "slo-ttft": PLANNED_TTFT_MS, "slo-itl": member.planned_itl_ms}


def _server(member: Member) -> dict[str, Any]:
    load = {"arrivalRate": 0, "avgInTokens": OUT_TOKENS, "avgOutTokens": OUT_TOKENS}
    return {
        "name": member.name,
        "class": "fleet",
        "model": member.name,
        "minNumReplicas": member.least_replicas,
        "maxNumReplicas": member.most_replicas,
        "maxBatchSize": member.rows,
        "currentAlloc": {"load": load},
    }
