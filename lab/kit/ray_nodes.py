"""Ray nodes on this machine, each taken for a machine of its own: for the demo and for tests.

Their resources are bookkeeping. Nothing of them is left running afterwards.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

# Ray's own look at its nodes, ten times as often as by default, so that one that is lost is
# replaced within seconds. What `RAY_health_check_period_ms` and so on are to `ray start`.
SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
    # Workers that nobody asked for take seconds of computing each.
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
    """One thread."""

    def __init__(self, head: Mapping[str, float]) -> None:
        """`head`: what the head, which cannot be lost, has to place replicas on."""
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        arguments = _arguments(head) | {"_system_config": SYSTEM_CONFIG}
        self._cluster = _started(lambda: Cluster(initialize_head=True, head_node_args=arguments))
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def __len__(self) -> int:
        """Without the head."""
        return len(self._nodes)

    def add(self, resources: Mapping[str, float]) -> None:
        self._nodes.append(_started(lambda: self._cluster.add_node(**_arguments(resources))))

    def processes(self, index: int) -> list[psutil.Process]:
        """The node's, Ray's own first; the API processes of its replicas among them."""
        return _tree(self._nodes[index])

    def kill(self, index: int) -> None:
        """As when a machine loses power: all that runs on it, at once."""
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
    """A head, which by itself places nothing, and a node for each of these."""
    nodes = RayNodes(head)
    try:
        for each in resources:
            nodes.add(each)
        yield nodes
    finally:
        nodes.close()


def _started(start: Callable[[], Any]) -> Any:
    """Ray gives a node 30 s to start, which are too few on a busy machine: it is tried again."""
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
    """A node with these, as Ray's Cluster takes it."""
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
    """Returns once nothing of it is left."""
    _end(_tree(node))


def _end(tree: list[psutil.Process]) -> None:
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=END_TIMEOUT_S)
