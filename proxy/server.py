"""gunicorn's options for the proxy, shared by `python -m proxy` and the config file. Logging: text
or JSON lines on standard error, audit lines apart from them."""

import logging
import logging.handlers
import os
import signal
import sys
from typing import Any

from common import logs
from common.connections.sockets import host_and_port, port_faults
from proxy.audit import AUDIT_LOGGER
from proxy.errors import StartupError
from proxy.settings import Settings

logger = logging.getLogger(__name__)
# Time beyond DRAIN_TIMEOUT to record requests that were cut off. Then the worker is killed.
GRACE_S = 10


class AuditFile(logging.handlers.WatchedFileHandler):
    """Appends lines to a file, which logrotate may move away. On a full disk, warns once until a
    line is written again, where logging would print a traceback each time. Any thread."""

    _has_failed = _had_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        self._had_failed, self._has_failed = self._has_failed, False
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging
        self._has_failed = True
        if not self._had_failed:
            error = sys.exc_info()[1]
            logger.warning("AUDIT_FILE takes no lines: %s; make room, or set another", error)


def logging_config(settings: Settings) -> dict[str, Any]:
    """Returns a dictConfig for the whole process, including gunicorn's loggers."""
    audit: dict[str, Any] = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
    if settings.audit_file is not None:
        audit = {"()": AuditFile, "filename": str(settings.audit_file), "encoding": "utf-8"}
    config = logs.logging_config(settings.log_level, settings.log_format)
    config["formatters"]["audit"] = {"format": "%(message)s"}
    config["handlers"]["audit"] = audit | {"formatter": "audit"}
    config["loggers"][AUDIT_LOGGER] = {"level": "INFO", "handlers": ["audit"], "propagate": False}
    return config


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
        # Its default path is per user, so this gunicorn and the API's would conflict.
        "control_socket_disable": True,
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
