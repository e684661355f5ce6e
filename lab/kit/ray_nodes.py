"""Starts Ray nodes on this machine that act as machines of their own, for the demo and for tests.

Their resources exist only in Ray's books. No process of them is left running afterwards.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

# Ray checks its nodes ten times as often as by default, so that a lost node's replicas are replaced
# within seconds. `ray start` takes these values from `RAY_health_check_period_ms` and so on.
SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
    # Each worker that is started in advance takes seconds of computing.
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
}
END_TIMEOUT_S = 30.0
MAX_TRIES = 5
NOTHING: Mapping[str, float] = {}
LEAST: dict[str, Any] = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
    "object_store_memory": 100 * 2**20,
}


class RayNodes:
    """A Ray cluster of processes on this machine. One thread."""

    def __init__(self, head: Mapping[str, float]) -> None:
        """`head` is the resources of the head node, which cannot be killed."""
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        arguments = _arguments(head) | {"_system_config": SYSTEM_CONFIG}
        self._cluster = _started(lambda: Cluster(initialize_head=True, head_node_args=arguments))
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def __len__(self) -> int:
        """Returns the number of nodes without the head."""
        return len(self._nodes)

    def add(self, resources: Mapping[str, float]) -> None:
        self._nodes.append(_started(lambda: self._cluster.add_node(**_arguments(resources))))

    def processes(self, index: int) -> list[psutil.Process]:
        """Returns the node's processes, Ray's own first, including those of its replicas."""
        return _tree(self._nodes[index])

    def kill(self, index: int) -> None:
        """Kill all processes of a node at once, as if its machine lost power."""
        node = self._nodes.pop(index)
        _kill(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        for node in (*self._nodes, self._cluster.head_node):
            _kill(node)
        self._cluster.shutdown()


@contextmanager
def ray_nodes(
    *resources: Mapping[str, float], head: Mapping[str, float] = NOTHING
) -> Iterator[RayNodes]:
    """Yields a cluster with a node for each of `resources`. By default the head has none."""
    nodes = RayNodes(head)
    try:
        for each in resources:
            nodes.add(each)
        yield nodes
    finally:
        nodes.close()


def _started(start: Callable[[], Any]) -> Any:
    """Starts a node. Ray allows it 30 s, which is too little on a busy machine: tries again."""
    ours = psutil.Process()
    for _ in range(MAX_TRIES - 1):
        before = set(ours.children())
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            _end([each for each in ours.children() if each not in before])
    return start()


def _arguments(resources: Mapping[str, float]) -> dict[str, Any]:
    """Returns the arguments for a node with these resources, as Ray's Cluster takes them."""
    others = {name: resources[name] for name in resources if name not in ("CPU", "GPU")}
    cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
    return LEAST | {"num_cpus": cpus, "num_gpus": gpus, "resources": others}


def _tree(node: Any) -> list[psutil.Process]:
    tree: list[psutil.Process] = []
    for infos in node.all_processes.values():
        for info in infos:
            try:
                process = psutil.Process(info.process.pid)
                tree += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
    return tree


def _kill(node: Any) -> None:
    """Kills all processes of a node, and waits until they have ended."""
    _end(_tree(node))


def _end(tree: list[psutil.Process]) -> None:
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=END_TIMEOUT_S)
