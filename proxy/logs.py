"""Logging: text or JSON lines on standard error, audit lines apart from them."""

from typing import Any

from proxy.settings import Settings

AUDIT_LOGGER = "proxy.audit"


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
            },
            "audit": audit | {"formatter": "audit"},
        },
        "root": {"level": settings.log_level, "handlers": ["console"]},
        "loggers": {
            "gunicorn.error": {"level": settings.log_level, "handlers": [], "propagate": True},
            AUDIT_LOGGER: {"level": "INFO", "handlers": ["audit"], "propagate": False},
        },
    }
