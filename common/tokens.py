"""What the API and the proxy share about JSON Web Tokens: their headers, and checks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jwt.types import Options

# RFC 7519 does not require a check of the time of issue (section 4.1.6), and some issuers write
# numbers where PyJWT expects text. None of these claims decides anything here.
IGNORED_CLAIMS: "Options" = {"verify_iat": False, "verify_jti": False, "verify_sub": False}
KEY_HEADERS = ("x-api-key", "api-key")  # clients of Anthropic and of Azure send a token as it is


def authorization_of(header: Callable[[str], str | None]) -> str | None:
    """Returns a request's Authorization, or a token in another header in its form. Two different
    tokens are joined by a comma, which no valid token contains."""
    authorization = header("authorization")
    if not (keys := {key for name in KEY_HEADERS if (key := header(name))}):
        return authorization
    scheme, _, token = (authorization or "Bearer").partition(" ")
    return f"{scheme} {','.join(sorted({token.strip(), *keys} - {''}))}"
