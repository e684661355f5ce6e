"""The id of a request, which is in the logs of every service it passes and in `X-Request-Id`."""

import random
import re
from contextvars import ContextVar

USABLE_ID = re.compile(r"[!-~]{1,128}")

request_id: ContextVar[str] = ContextVar("request_id")  # the id of the current request


def new_request_id() -> str:
    """Returns a new id, which is unique but not secret."""
    return f"{random.getrandbits(128):032x}"


def usable_request_id(candidate: str) -> str:
    """Returns the client's own id if it fits a header and a log line, else a new one."""
    return candidate if USABLE_ID.fullmatch(candidate) else new_request_id()
