"""What the API and the proxy ask of a JSON Web Token."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jwt.types import Options

# RFC 7519 asks nobody to look at when a token was issued (section 4.1.6), and there are issuers
# that write numbers where PyJWT wants text. None of these claims decides anything here.
IGNORED_CLAIMS: "Options" = {"verify_iat": False, "verify_jti": False, "verify_sub": False}
