"""How gunicorn runs the proxy: one set of options for `python -m proxy` and the config file."""

import os
import signal
from functools import partial
from typing import Any

from gunicorn.app.base import BaseApplication

from proxy.app import ProxyApp
from proxy.logs import logging_config
from proxy.settings import Settings

# On top of DRAIN_TIMEOUT, for gunicorn to close what is left: it lingers 2 s on kept-alive
# connections, and a worker that is still there afterwards is killed.
GRACE_S = 10
# For probes and refusals while all others are busy.
RESERVED_THREADS = 16


def gunicorn_options(settings: Settings) -> dict[str, Any]:
    """gunicorn's settings by name."""
    return {
        "bind": [f"{settings.proxy_host}:{settings.proxy_port}"],
        # One process: in-flight counts, affinity and in-memory limits are its own. For more
        # throughput run more proxies, with REDIS_URL.
        "workers": 1,
        "worker_class": "proxy.worker.ProxyWorker",
        "threads": settings.proxy_threads + RESERVED_THREADS,
        # Above the threads, so that connections can be kept alive while all threads work.
        "worker_connections": 2 * settings.proxy_threads,
        "backlog": 2048,
        "timeout": 120,
        "graceful_timeout": int(settings.drain_timeout) + GRACE_S,
        "keepalive": 75,
        "preload_app": False,
        # One per user by default, which the API's gunicorn and ours would fight over.
        "control_socket_disable": True,
        "max_requests": 0,
        # The proxy believes no header of its clients, and so no address but the peer's.
        "forwarded_allow_ips": "",
        "logconfig_dict": logging_config(settings),
        "on_starting": _take_over_reload,
        "post_worker_init": _start_app,
        "worker_exit": _stop_app,
    }


class ProxyServer(BaseApplication):
    """gunicorn with our options and application, without a command line of its own."""

    def __init__(self, settings: Settings, app: ProxyApp) -> None:
        self._settings = settings
        self._app = app
        super().__init__()

    def load_config(self) -> None:
        for name, value in gunicorn_options(self._settings).items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._app


def _start_app(worker: Any) -> None:
    worker.wsgi.start()


def _stop_app(server: Any, worker: Any) -> None:
    app = getattr(worker, "wsgi", None)  # None: it failed to boot
    if isinstance(app, ProxyApp):
        app.stop()


def _take_over_reload(server: Any) -> None:
    """SIGHUP reloads the files in the running worker.

    gunicorn would start a new worker instead: that cuts streams longer than the drain, forgets
    in-memory limits, and ends the service if a file has a mistake in it.
    """
    server.handle_hup = partial(_pass_hangup_on, server)


def _pass_hangup_on(server: Any) -> None:
    for pid in list(server.WORKERS):
        os.kill(pid, signal.SIGHUP)
