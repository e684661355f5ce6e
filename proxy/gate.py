"""Who may come in, and by which way: a token in a header, or a browser's in the login's cookie."""

from collections.abc import Callable

from proxy.access import Role, needed_role
from proxy.audit import AuditRecord
from proxy.auth import Authenticator, Principal
from proxy.errors import LoginNeeded, RoleNeeded, Unauthorized
from proxy.inbound import Environ
from proxy.origins import check_own_page
from proxy.policy import Policy

COOKIE = "hearth_token"


class Gate:
    """Any thread."""

    def __init__(self, authenticator: Authenticator, policy: Callable[[], Policy]) -> None:
        self._authenticator = authenticator
        self._policy = policy

    def identify(self, authorization: str | None) -> tuple[Principal, Role]:
        """Who is behind an Authorization header, and the role the policy leaves them.

        Raises Unauthorized.
        """
        principal = self._authenticator.authenticate(authorization)
        return principal, self._policy().for_team(principal.team_id).role_of(principal.role)

    def let_in(self, record: AuditRecord, environ: Environ, path: str) -> Principal:
        """Who asks for a plain path, if they may.

        Raises Unauthorized, LoginNeeded, RoleNeeded or OriginNotAllowed.
        """
        authorization = environ.get("HTTP_AUTHORIZATION")
        token = None if authorization else cookie_token(environ)
        try:
            principal, role = self.identify(f"Bearer {token}" if token else authorization)
        except Unauthorized as error:
            if not authorization and _wants_page(environ):
                raise LoginNeeded(error.reason) from error
            raise
        record.team_id, record.token_id = principal.team_id, principal.token_id
        needed = needed_role(record.method, path)
        if role < needed:
            raise RoleNeeded(f"{record.method} {path}"[:256], str(role), str(needed))
        is_read = record.method in ("GET", "HEAD") and needed < Role.OPERATOR
        if token and not is_read:
            check_own_page(environ)
        return principal


def cookie_token(environ: Environ) -> str | None:
    """The token of the login's cookie."""
    for part in str(environ.get("HTTP_COOKIE", "")).split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and value:
            return value
    return None


def _wants_page(environ: Environ) -> bool:
    """Whether a browser asks for a page, which it cannot send a token with."""
    accepted = str(environ.get("HTTP_ACCEPT", "")).lower()
    return environ["REQUEST_METHOD"] in ("GET", "HEAD") and "text/html" in accepted
