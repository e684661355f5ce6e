"""Logging: text or JSON lines on standard error, audit lines apart from them."""

from typing import Any

from common import logs
from proxy.settings import Settings

AUDIT_LOGGER = "proxy.audit"


def logging_config(settings: Settings) -> dict[str, Any]:
    """Returns a dictConfig for the whole process, including gunicorn's loggers."""
    audit: dict[str, Any] = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
    if settings.audit_file is not None:
        # WatchedFileHandler notices that logrotate has moved its file away.
        audit = {
            "class": "logging.handlers.WatchedFileHandler",
            "filename": str(settings.audit_file),
            "encoding": "utf-8",
        }
    config = logs.logging_config(settings.log_level, settings.log_format)
    config["formatters"]["audit"] = {"format": "%(message)s"}
    config["handlers"]["audit"] = audit | {"formatter": "audit"}
    config["loggers"][AUDIT_LOGGER] = {"level": "INFO", "handlers": ["audit"], "propagate": False}
    return config
