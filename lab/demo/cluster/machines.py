"""Places for the demo's replicas: Ray nodes, or processes of this machine. The replicas end with
the demo."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from cluster.actuators.local import LocalMachine
from lab.demo.cluster.story import MAX_REPLICAS
from lab.kit.ray_nodes import RayNodes, ray_nodes

NUM_NODES = 3
# Each node has room for another replica, so that the replicas of a lost node find a place.
CPUS_OF_NODE = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where replicas run. `actuator` is for the cluster's file; `folder` has local replicas."""

    actuator: dict[str, Any]
    nodes: RayNodes | None = None
    folder: Path | None = None


@contextmanager
def ray_place() -> Iterator[Place]:
    with ray_nodes(*[{"CPU": CPUS_OF_NODE}] * NUM_NODES) as nodes:
        yield Place({"kind": "ray", "address": nodes.address}, nodes)


@contextmanager
def local_place(folder: Path) -> Iterator[Place]:
    replicas = folder / "replicas"
    try:
        actuator = {"kind": "local", "folder": str(replicas), "capacity": {"CPU": MAX_REPLICAS}}
        yield Place(actuator, folder=replicas)
    finally:
        machine = LocalMachine(replicas)
        for each in machine.placed():
            machine.remove(each.name)
        machine.close()


def node_with_replica(nodes: RayNodes, urls: set[str]) -> tuple[int, set[str]]:
    """Returns the first node with any of these replicas, and its replicas. Raises LookupError."""
    for index in range(len(nodes)):
        here = urls & _listening(nodes.processes(index), urls)
        if here:
            return index, here
    raise LookupError(f"no node has any of {sorted(urls)}")


def _listening(processes: list[psutil.Process], urls: set[str]) -> set[str]:
    ports = {port for each in processes for port in _ports(each)}
    return {url for url in urls if urlsplit(url).port in ports}


def _ports(process: psutil.Process) -> set[int]:
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        return set()
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
