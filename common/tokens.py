"""The checks of JSON Web Tokens that the API and the proxy share."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jwt.types import Options

# RFC 7519 does not require a check of the time of issue (section 4.1.6), and some issuers write
# numbers where PyJWT expects text. None of these claims decides anything here.
IGNORED_CLAIMS: "Options" = {"verify_iat": False, "verify_jti": False, "verify_sub": False}
