"""The API's own, optional check of bearer tokens; the proxy is where tokens are managed."""

import logging

from flask import Flask, request

from common.tokens import IGNORED_CLAIMS
from inference_api.errors import Unauthorized
from inference_api.settings import Settings

logger = logging.getLogger(__name__)

# /drain has a rule of its own; scrapers carry no tokens.
OPEN_PATHS = frozenset(
    {"/", "/health", "/ping", "/version", "/ready", "/drain", "/metrics", "/openapi.json"}
)
ASSETS_PATH = "/dashboard/assets/"  # the page's files: it can ask for a token once it is there
DOCS_PATH = "/docs/"


def register_token_check(app: Flask, settings: Settings) -> None:
    """Refuse calls without a good token, where JWT_SECRET is set; else do nothing."""
    if settings.jwt_secret is None:
        return

    @app.before_request
    def check_token() -> None:
        if needs_token(request.path, settings) and not has_valid_token(settings):
            raise Unauthorized("A valid bearer token is needed.")


def needs_token(path: str, settings: Settings) -> bool:
    """Whether requests of this path, which may be a URL rule, are checked."""
    is_open = path in OPEN_PATHS or path.startswith((ASSETS_PATH, DOCS_PATH))
    return settings.jwt_secret is not None and not is_open


def has_valid_token(settings: Settings) -> bool:
    """Whether this request carries an HS256 token of JWT_SECRET that has not expired."""
    api_key = request.headers.get("X-Api-Key", "")  # as clients of Anthropic send it
    authorization = request.headers.get("Authorization") or f"Bearer {api_key}"
    scheme, _, token = authorization.partition(" ")
    if settings.jwt_secret is None or scheme.lower() != "bearer":
        return False
    import jwt  # takes long, and most servers have no JWT_SECRET

    secret = settings.jwt_secret.get_secret_value()
    try:
        jwt.decode(token.strip(), secret, algorithms=["HS256"], options=IGNORED_CLAIMS)
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        # The last four reach us out of the library's own parsing of odd values.
        logger.info("refused a token: %s: %s", type(error).__name__, error)
        return False
    return True
