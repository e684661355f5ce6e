"""One logging configuration for our loggers and gunicorn's: text for people, JSON for machines.

No prompt, generated text or secret is logged at any level. Records made while a request is served
have its id, which is the same in the logs of the proxy and the API.
"""

import logging
from typing import Any, Literal

from common.request_ids import request_id

LogFormat = Literal["text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
JSON = "%(asctime)s %(levelname)s %(name)s %(message)s"


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
