"""Origins of web pages, as CORS_ORIGINS lists them."""

import re
from collections.abc import Collection

ANY = "*"
# As browsers send it: in lower case, without a path.
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


def is_allowed(origin: str | None, allowed: Collection[str]) -> bool:
    return origin is not None and (ANY in allowed or origin in allowed)
