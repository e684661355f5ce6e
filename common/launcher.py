"""Runs gunicorn in this process, for services with their own settings."""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gunicorn.app.base import BaseApplication

from common.connections.sockets import host_and_port, port_faults
from common.connections.worker import ConnectionLimits, allowed_connections, polling_worker
from common.startup import ServiceSettings

MAX_CONNECTIONS = 1024
MAX_HELD_REQUESTS = 8  # requests of full size, because bodies may be large


def threaded(
    host: str, port: int, names: tuple[str, str], threads: int, max_body_bytes: int
) -> dict[str, Any]:
    """Returns gunicorn's settings for a small service: one worker, because it holds the state.
    `names` are those of the settings `host` and `port`."""

    def on_starting(_arbiter: Any) -> None:
        if faults := port_faults(host, port, names):
            sys.exit(faults[0])

    limits = ConnectionLimits(max_body_bytes, max_held_requests=MAX_HELD_REQUESTS)
    return {
        "bind": [host_and_port(host, port)],
        "workers": 1,
        "worker_class": polling_worker(limits),
        "worker_connections": allowed_connections(MAX_CONNECTIONS),
        "threads": threads,
        "timeout": 120,
        "graceful_timeout": 30,
        "on_starting": on_starting,
        "control_socket_disable": True,  # its path is per user, so two servers would conflict
    }


class Launcher(BaseApplication):
    """gunicorn with these settings. `create_app` is called in each worker."""

    def __init__(self, options: Mapping[str, Any], create_app: Callable[[], Any]) -> None:
        self._options, self._create_app = options, create_app
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._create_app()


def service_options(settings: ServiceSettings, prefix: str) -> dict[str, Any]:
    """Returns gunicorn's settings for a service. The names of its variables begin with `prefix`."""
    names = f"{prefix}_HOST", f"{prefix}_PORT"
    return threaded(settings.host, settings.port, names, settings.threads, settings.max_body_bytes)


def serve(options: Mapping[str, Any], create_app: Callable[[], Any]) -> None:
    """Serve until a signal ends it, with log lines on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    Launcher(options, create_app).run()
