"""One logging configuration for our loggers and gunicorn's: text for people, JSON for machines.

No prompt, no generated text and no secret is logged at any level. What a request thread logs has
its request's id; the proxy's log has the same one.
"""

import logging
from contextvars import ContextVar
from typing import Any

from inference_api.settings import Settings

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
JSON = "%(asctime)s %(levelname)s %(name)s %(message)s"

request_id: ContextVar[str] = ContextVar("request_id")  # of the request this thread answers


class RequestIds(logging.Filter):
    """Gives a record its request's id. Any thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        if (current := request_id.get(None)) is not None:
            record.request_id = current
        return True


def logging_config(settings: Settings) -> dict[str, Any]:
    """For `logging.config.dictConfig` and gunicorn's `logconfig_dict`."""
    formatters: dict[str, Any] = {
        "text": {"format": TEXT},
        "json": {"()": "pythonjsonlogger.json.JsonFormatter", "fmt": JSON},
    }
    handler = {
        "class": "logging.StreamHandler",
        "formatter": settings.log_format,
        "filters": ["request_ids"],
        "stream": "ext://sys.stderr",
    }
    root = {"level": settings.log_level, "handlers": ["stderr"]}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": formatters,
        "filters": {"request_ids": {"()": RequestIds}},
        "handlers": {"stderr": handler},
        "root": root,
        # gunicorn gives these two handlers of its own unless told otherwise; its access log is
        # off, because every generation has one line of ours that says more.
        "loggers": {
            "gunicorn.error": {"level": settings.log_level, "handlers": [], "propagate": True},
            "gunicorn.access": {"level": "WARNING", "handlers": [], "propagate": True},
        },
    }
