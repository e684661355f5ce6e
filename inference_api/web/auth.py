"""The API's own, optional check of bearer tokens; the proxy is where tokens are managed."""

import logging

from flask import Flask, request

from common.tokens import IGNORED_CLAIMS, authorization_of
from inference_api.errors import Unauthorized
from inference_api.settings import Settings

logger = logging.getLogger(__name__)

# /drain has its own check, and scrapers send no tokens.
OPEN_PATHS = frozenset(
    {"/", "/health", "/ping", "/version", "/ready", "/drain", "/metrics", "/openapi.json"}
)
ASSETS_PATH = "/dashboard/assets/"  # the dashboard's files, which then ask the user for a token
DOCS_PATH = "/docs/"


def register_token_check(app: Flask, settings: Settings) -> None:
    """Refuse calls without a valid token, if JWT_SECRET is set."""
    if settings.jwt_secret is None:
        return

    @app.before_request
    def check_token() -> None:
        if needs_token(request.path, settings) and not has_valid_token(settings):
            raise Unauthorized("A valid bearer token is needed.")


def needs_token(path: str, settings: Settings) -> bool:
    """Returns whether requests to this path, or URL rule, are checked."""
    is_open = path in OPEN_PATHS or path.startswith((ASSETS_PATH, DOCS_PATH))
    return settings.jwt_secret is not None and not is_open


def has_valid_token(settings: Settings) -> bool:
    """Returns whether this request carries an unexpired HS256 token of JWT_SECRET."""
    scheme, _, token = (authorization_of(request.headers.get) or "").partition(" ")
    if settings.jwt_secret is None or scheme.lower() != "bearer":
        return False
    import jwt  # slow to import, and most servers have no JWT_SECRET

    secret = settings.jwt_secret.get_secret_value()
    try:
        jwt.decode(token, secret, algorithms=["HS256"], options=IGNORED_CLAIMS)
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        # The last four come from the library's parsing of odd values.
        logger.info("refused a token: %s: %s", type(error).__name__, error)
        return False
    return True
