"""`python -m cluster FILE`: the controller of the cluster described in the file."""

import sys
from pathlib import Path
from typing import Any

import click
from flask import Flask

from cluster.actuators import Actuator, Machines
from cluster.actuators.tended import TendedReplicas, Times
from cluster.actuators.upstreams_file import UpstreamsFile
from cluster.config import ActuatorKeys, ClusterConfig, read_config
from cluster.controller.app import create_app
from cluster.controller.cycle import ControllerParts
from cluster.controller.loop import Controller
from cluster.controller.optimizer import OptimizerClient
from cluster.controller.pages import PageReader
from cluster.errors import ConfigFaulty
from cluster.system import SystemDocument
from common.launcher import serve, threaded

THREADS = 8  # threads that handle requests
MAX_BODY_BYTES = 1024 * 1024


class Service:
    """Runs the controller in a gunicorn worker. Threads do not survive forks: it starts after."""

    def __init__(self, config: ClusterConfig, system: SystemDocument) -> None:
        self._config, self._system = config, system
        self._controller: Controller | None = None

    def create_app(self) -> Flask:
        parts = ControllerParts(
            self._config,
            self._system,
            OptimizerClient(self._config.optimizer),
            PageReader(self._config.proxy, self._config.engines(self._system)),
        )
        self._controller = Controller(parts, lambda: create_actuator(self._config, self._system))
        self._controller.start()
        host_names = [*self._config.allowed_hosts, self._config.host]
        return create_app(self._controller, self._system, host_names)

    def end(self, _server: Any, _worker: Any) -> None:
        """Stops the controller; gunicorn calls this as `worker_exit`."""
        if self._controller is not None:
            self._controller.stop()


def create_actuator(config: ClusterConfig, system: SystemDocument) -> Actuator:
    """Returns the actuator of the kind that the file names. Other kinds are not imported, because
    clients for Ray and Kubernetes are extras.

    Raises ActuatorUnusable, and ConfigFaulty if Kubernetes has no account for this process."""
    keys = config.actuator
    if keys.kind == "kubernetes":
        from cluster.actuators.deployments import Deployments

        return Deployments(keys.namespace, config.engines(system))
    upstreams, times = UpstreamsFile(config.upstreams_file), Times(leave_s=keys.leave_s)
    return TendedReplicas(_machines(keys), config.recipes(system), upstreams, times)


def _machines(keys: ActuatorKeys) -> Machines:
    if keys.kind == "ray":
        from cluster.actuators.ray_actors import RayMachines

        return RayMachines(keys.address, keys.namespace, pins=keys.pins)
    from cluster.actuators.local import LocalMachine

    return LocalMachine(keys.folder, keys.capacity or None, pins=keys.pins)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only plan; start and stop nothing.")
def main(file: Path, dry_run: bool) -> None:
    """Start and stop replicas as the load requires.

    FILE is the cluster's YAML (docs/controller.md)."""
    try:
        config, system = read_config(file)
    except ConfigFaulty as error:
        sys.exit(f"The cluster of {file} cannot start:\n{error}")
    if dry_run:
        config = config.model_copy(update={"dry_run": True})
    service = Service(config, system)
    options = threaded(config.host, config.port, ("host", "port"), THREADS, MAX_BODY_BYTES) | {
        "worker_exit": service.end
    }
    serve(options, service.create_app)


if __name__ == "__main__":
    main()
