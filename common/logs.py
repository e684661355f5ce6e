"""One logging configuration for our loggers and gunicorn's: text for people, JSON for machines.

No prompt, generated text or secret is logged at any level. Records made while a request is served
have its id, which is in the logs of every service that it passes, and in `X-Request-Id`.
"""

import logging
import random
import re
from contextvars import ContextVar
from typing import Any, Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
JSON = "%(asctime)s %(levelname)s %(name)s %(message)s"
USABLE_ID = re.compile(r"[!-~]{1,128}")

request_id: ContextVar[str] = ContextVar("request_id")  # the id of the current request


def new_request_id() -> str:
    """Returns a new id, which is unique but not secret."""
    return f"{random.getrandbits(128):032x}"


def usable_request_id(candidate: str) -> str:
    """Returns the client's own id if it fits a header and a log line, else a new one."""
    return candidate if USABLE_ID.fullmatch(candidate) else new_request_id()


class RequestIds(logging.Filter):
    """Adds the request's id to a record. Any thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        if (current := request_id.get(None)) is not None:
            record.request_id = current
        return True


def logging_config(level: LogLevel, log_format: LogFormat) -> dict[str, Any]:
    """Returns a configuration for `logging.config.dictConfig` and gunicorn's `logconfig_dict`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {"format": TEXT},
            "json": {"()": "pythonjsonlogger.json.JsonFormatter", "fmt": JSON},
        },
        "filters": {"request_ids": {"()": RequestIds}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": log_format,
                "filters": ["request_ids"],
                "stream": "ext://sys.stderr",
            }
        },
        "root": {"level": level, "handlers": ["stderr"]},
        # gunicorn would add its own handlers to these two. Its access log is off, because our line
        # for each request says more.
        "loggers": {
            "gunicorn.error": {"level": level, "handlers": [], "propagate": True},
            "gunicorn.access": {"level": "WARNING", "handlers": [], "propagate": True},
        },
    }
