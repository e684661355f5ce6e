"""Logging: text or JSON lines on standard error, audit lines apart from them."""

import logging
import logging.handlers
import sys
from typing import Any

from common import logs
from proxy.settings import Settings

AUDIT_LOGGER = "proxy.audit"
logger = logging.getLogger(__name__)


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
