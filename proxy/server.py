"""gunicorn's options for the proxy: one set for `python -m proxy` and the config file."""

import os
import signal
from functools import partial
from typing import Any

from proxy.logs import logging_config
from proxy.settings import Settings

# On top of DRAIN_TIMEOUT, for what is cut to be written down; a worker that is still there
# afterwards is killed.
GRACE_S = 10


def gunicorn_options(settings: Settings) -> dict[str, Any]:
    """gunicorn's settings by name."""
    return {
        "bind": [f"{settings.proxy_host}:{settings.proxy_port}"],
        "workers": settings.proxy_processes,
        "worker_class": "proxy.worker.ProxyWorker",
        # All of it is accepted at once, and nobody is served meanwhile.
        "backlog": 1024,
        "timeout": 120,
        "graceful_timeout": int(settings.drain_timeout) + GRACE_S,
        "preload_app": False,
        # One per user by default, which the API's gunicorn and ours would fight over.
        "control_socket_disable": True,
        "max_requests": 0,
        "logconfig_dict": logging_config(settings),
        "on_starting": _take_over_reload,
    }


def _take_over_reload(server: Any) -> None:
    """SIGHUP reloads the files in the running worker.

    gunicorn would start a new worker instead: that cuts streams longer than the drain, forgets
    in-memory limits, and ends the service if a file has a mistake in it.
    """
    server.handle_hup = partial(_pass_hangup_on, server)


def _pass_hangup_on(server: Any) -> None:
    for pid in list(server.WORKERS):
        os.kill(pid, signal.SIGHUP)
