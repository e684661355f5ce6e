"""Ray nodes on this machine, each taken for a machine of its own: for the demo and for tests.

Their resources are bookkeeping. Nothing of them is left running afterwards.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
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
}
END_TIMEOUT_S = 30.0
LEAST: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 100 * 2**20}


class RayNodes:
    """One thread."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # The head places nothing: it cannot be lost.
        head = LEAST | {"num_cpus": 0, "_system_config": SYSTEM_CONFIG}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def __len__(self) -> int:
        """Without the head."""
        return len(self._nodes)

    def add(self, resources: Mapping[str, float], index: int | None = None) -> None:
        """`index`: its place among the nodes; default: behind all."""
        others = {name: resources[name] for name in resources if name not in ("CPU", "GPU")}
        self._nodes.insert(
            len(self) if index is None else index,
            self._cluster.add_node(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                resources=others,
                **LEAST,
            ),
        )

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
def ray_nodes(resources: Sequence[Mapping[str, float]]) -> Iterator[RayNodes]:
    """A head, and a node for each of these."""
    nodes = RayNodes()
    try:
        for each in resources:
            nodes.add(each)
        yield nodes
    finally:
        nodes.close()


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
    tree = _tree(node)
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=END_TIMEOUT_S)
