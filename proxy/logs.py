"""Logging: text or JSON lines on standard error, audit lines apart from them."""

import logging
from contextvars import ContextVar
from typing import Any

from proxy.settings import Settings

AUDIT_LOGGER = "proxy.audit"

request_id: ContextVar[str] = ContextVar("request_id")  # of the request this thread serves


class RequestIds(logging.Filter):
    """Gives a record its request's id, which the upstream's log has too. Any thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        if (current := request_id.get(None)) is not None:
            record.request_id = current
        return True


def logging_config(settings: Settings) -> dict[str, Any]:
    """A dictConfig for the whole process, gunicorn's own loggers included."""
    audit: dict[str, Any] = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
    if settings.audit_file is not None:
        # WatchedFileHandler notices that logrotate has moved its file away.
        audit = {
            "class": "logging.handlers.WatchedFileHandler",
            "filename": str(settings.audit_file),
            "encoding": "utf-8",
        }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request_ids": {"()": RequestIds}},
        "formatters": {
            "text": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
            "json": {
                "()": "pythonjsonlogger.json.JsonFormatter",
                "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
            },
            "audit": {"format": "%(message)s"},
        },
        "handlers": {
            "console": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": settings.log_format,
                "filters": ["request_ids"],
            },
            "audit": audit | {"formatter": "audit"},
        },
        "root": {"level": settings.log_level, "handlers": ["console"]},
        "loggers": {
            "gunicorn.error": {"level": settings.log_level, "handlers": [], "propagate": True},
            AUDIT_LOGGER: {"level": "INFO", "handlers": ["audit"], "propagate": False},
        },
    }
