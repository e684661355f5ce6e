"""The table of roles and the routes they may use, and the normal form of paths to look up.

Each role includes the one before it. Every valid token has `team`, which may generate. `viewer` may
also read state, metrics and other teams' ids, and ask questions that change nothing, whatever their
method. `operator` may make changes. A route without a line is the operator's, so a new route is
closed until a line opens it; a line of the operator's says that its method exists.

Pure functions; any thread.
"""

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from proxy.errors import BadRequest

# Only short paths are cached: anybody may send paths, and thousands of long ones fill the memory.
MAX_CACHED_CHARS = 256


class Role(IntEnum):
    """Roles of callers, from least to most."""

    TEAM = 0
    VIEWER = 1
    OPERATOR = 2

    @classmethod
    def named(cls, name: object) -> "Role":
        """Returns the role of this name; TEAM for any other claim."""
        return _ROLE_BY_NAME.get(name, cls.TEAM) if isinstance(name, str) else cls.TEAM

    def __str__(self) -> str:
        return self.name.lower()


_ROLE_BY_NAME = {str(role): role for role in Role}

# Routes as in the API's /openapi.json. `{...}` stands for any text, including slashes. TEAM also
# has routes of vLLM that the API lacks, and one that it answers 404 itself.
LINES: Mapping[Role, str] = {
    Role.TEAM: """
        POST /inference
        POST /inference/{model}
        POST /predictions/{model}
        POST /chat/{model}
        POST /v1/completions
        POST /v1/chat/completions
        POST /v1/embeddings
        POST /v1/responses
        POST /v1/responses/compact
        POST /v1/responses/input_tokens
        POST /openai/deployments/{model}/chat/completions
        POST /openai/deployments/{model}/completions
        POST /openai/deployments/{model}/embeddings
        POST /v1/messages
        POST /v1/messages/count_tokens
        POST /v1/tokenize
        POST /v1/detokenize
        POST /tokenize
        POST /detokenize
        GET /tokenizer_info
        POST /api/event_logging/{name}
        HEAD /
        GET /v1/models
        GET /v1/models/{model}
        GET /health
        GET /ready
        GET /ping
        POST /ping
        GET /version
        GET /openapi.json
        GET /docs
        GET /docs/
        GET /docs/{path}
    """,
    Role.VIEWER: """
        GET /
        GET /dashboard/assets/{version}/{name}
        GET /dashboard/state
        GET /dashboard/models
        GET /dashboard/requests
        GET /dashboard/cluster
        GET /bundle
        GET /metrics
        GET /speed
        GET /state
        GET /plan
        GET /explain/{name}
        GET /getAccelerators
        GET /getAccelerator/{name}
        GET /getCapacities
        GET /getCapacity/{name}
        GET /getModels
        GET /getModel/{name}
        GET /getModelAcceleratorPerf/{names}
        GET /getServiceClasses
        GET /getServiceClass/{name}
        GET /getServiceClassModelTarget/{names}
        GET /getServers
        GET /getServer/{name}
        POST /analyze
        POST /tune
        POST /size
        POST /whatif
        GET /catalogue
        POST /howmany
        GET /weights/sessions
        GET /weights/sessions/{session_id}
        POST /weights/sessions/{session_id}/partition
    """,
    Role.OPERATOR: """
        POST /drain
        POST /bundle/load/{name}
        POST /bundle/unload/{name}
        POST /bundle/validate
        POST /pipeline/split
        POST /pipeline/measure
        PUT /state
        POST /optimize
        POST /optimizeOne
        GET /applyAllocation
        POST /setAccelerators
        POST /addAccelerator
        GET /removeAccelerator/{name}
        POST /setCapacities
        POST /setCapacity
        GET /removeCapacity/{name}
        POST /setModels
        GET /addModel/{name}
        GET /removeModel/{name}
        POST /addModelAcceleratorPerf
        GET /removeModelAcceleratorPerf/{names}
        POST /setServiceClasses
        GET /addServiceClass/{names}
        GET /removeServiceClass/{name}
        POST /addServiceClassModelTargets
        GET /removeServiceClassModelTarget/{names}
        POST /setServers
        POST /addServer
        GET /removeServer/{name}
        POST /weights_update
        POST /weights_gen
        POST /weights_update_delete
        POST /weights_log
        DELETE /weights/sessions/{session_id}
        POST /weights/sessions/{session_id}/observations
    """,
}
ROLE_BY_ROUTE: Mapping[str, Role] = {
    line.strip(): role for role, lines in LINES.items() for line in lines.strip().splitlines()
}
# What a team is told of instead of a path without a line.
TEAM_PATHS = ", ".join(
    route.partition(" ")[2]
    for route, role in ROLE_BY_ROUTE.items()
    if role is Role.TEAM and " /v1/" in route and "{" not in route
)

METHODS = sorted({route.partition(" ")[0] for route in ROLE_BY_ROUTE})
_PARAMETER = re.compile(r"\\\{\w+\\\}")
_PATTERNS = [
    (re.compile(_PARAMETER.sub("(?s:.+)", re.escape(route))), role)
    for route, role in ROLE_BY_ROUTE.items()
]
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
# Dot segments, also as seen by servers that cut off parameters: `/..;a/`.
_ODD_PATH = re.compile(r"//|/\.{1,2}(?:;[^/]*)?(?:/|$)|[\\\x00-\x1f\x7f]")


def plain_path(target: str) -> str:
    """Returns the path of a request target, decoded once, as the upstream decodes it. Raises
    BadRequest as `_decoded` does."""
    raw = target.partition("?")[0]
    return _decoded(raw) if len(raw) <= MAX_CACHED_CHARS else _decoded.__wrapped__(raw)


@lru_cache(maxsize=4096)
def _decoded(raw: str) -> str:
    """Returns a path, decoded, without query and final slash, which do not change the route.

    Raises BadRequest for a path that servers may understand differently: dot segments, empty
    segments, backslashes, control characters, and escapes that are broken, not UTF-8, or hide
    further escapes.
    """
    try:
        path = unquote_to_bytes(raw.encode("latin-1")).decode()
    except UnicodeError:
        path = "//"
    if _BAD_ESCAPE.search(raw) or _ESCAPE.search(path) or _ODD_PATH.search(path):
        raise BadRequest(
            "The path is not in its plain form; send it without '.', '..' or empty segments, "
            "backslashes, control characters, and encoded once, as UTF-8."
        )
    return path.rstrip("/") or "/"


def allowed_methods(path: str) -> list[str]:
    """Returns the methods that a plain path has lines for; none if it is not in the table."""
    return [each for each in METHODS if _matching(each, path)]


def needed_role(method: str, path: str) -> Role:
    """Returns the least role that may use a plain path: the highest role of matching lines, or the
    operator's if none matches."""
    find = _needed_role if len(path) <= MAX_CACHED_CHARS else _needed_role.__wrapped__
    return find(method, path)


@lru_cache(maxsize=4096)
def _needed_role(method: str, path: str) -> Role:
    return max(_matching(method, path), default=Role.OPERATOR)


def _matching(method: str, path: str) -> list[Role]:
    """Returns the roles of the lines that match."""
    line = f"{method} {path}"
    if method == "HEAD" and line not in ROLE_BY_ROUTE:
        line = f"GET {path}"
    return [role for pattern, role in _PATTERNS if pattern.fullmatch(line)]
