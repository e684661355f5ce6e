"""Where the demo's replicas run: Ray nodes, or processes of this machine. What runs there when the
demo ends, ends with it."""

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
# Room for a replica more than a node's, so that those of a lost node find a place.
CPUS_OF_NODE = 2


@dataclass(frozen=True, slots=True)
class Place:
    """`actuator` is what the cluster's file says of it; `folder` is that of local replicas."""

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
    """The first node that has one of these replicas, and all of them that it has."""
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
