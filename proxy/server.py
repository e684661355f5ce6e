"""gunicorn's options for the proxy, shared by `python -m proxy` and the config file."""

import os
import signal
import sys
from typing import Any

from common.connections.sockets import host_and_port, port_faults
from proxy.errors import StartupError
from proxy.logs import logging_config
from proxy.settings import Settings

# Time beyond DRAIN_TIMEOUT to record requests that were cut off. Then the worker is killed.
GRACE_S = 10


def gunicorn_options(settings: Settings) -> dict[str, Any]:
    """Returns gunicorn's settings by name."""
    address = settings.proxy_host, settings.proxy_port

    def on_starting(arbiter: Any) -> None:
        if faults := port_faults(*address, ("PROXY_HOST", "PROXY_PORT")):
            sys.exit(str(StartupError(faults)))
        _take_over_reload(arbiter)

    return {
        "bind": [host_and_port(*address)],
        "workers": settings.proxy_processes,
        "worker_class": "proxy.worker.ProxyWorker",
        # The whole backlog is accepted at once, while no client is served.
        "backlog": 1024,
        "timeout": 120,
        "graceful_timeout": int(settings.drain_timeout) + GRACE_S,
        "preload_app": False,
        # Its default path is per user, so this gunicorn and the API's would conflict.
        "control_socket_disable": True,
        "max_requests": 0,
        "logconfig_dict": logging_config(settings),
        "on_starting": on_starting,
    }


def _take_over_reload(arbiter: Any) -> None:
    """Makes SIGHUP reload the files in the running worker.

    gunicorn would start a new worker instead, which cuts streams that last longer than the drain,
    loses in-memory limits, and ends the service if a file has a mistake.
    """

    def pass_hangup_on() -> None:
        for pid in list(arbiter.WORKERS):
            os.kill(pid, signal.SIGHUP)

    arbiter.handle_hup = pass_hangup_on
