"""Identifies the caller of every request, by a token in a header or in a browser's cookie."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from common.addresses import LOCAL
from common.tokens import authorization_of
from proxy.access.auth import Authenticator, Principal
from proxy.access.policy import Policy
from proxy.access.roles import TEAM_PATHS, Role, allowed_methods, needed_role, plain_path
from proxy.audit import AuditRecord
from proxy.background import Aside
from proxy.clients.origins import check_own_page, is_preflight
from proxy.clients.request_head import RequestHead
from proxy.errors import BadMethod, BadRequest, LoginNeeded, RoleNeeded, Unauthorized, UnknownRoute

COOKIE = "hearth_token"


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets requests in if their token has the role for their path. Event loop only."""

    authenticator: Authenticator
    policy: Callable[[], Policy]
    aside: Aside

    async def identify(self, authorization: str | None) -> tuple[Principal, Role]:
        """Returns the principal of an Authorization header, and its role under the policy. Raises
        Unauthorized."""
        authenticator = self.authenticator
        if authenticator.may_block:
            principal = await self.aside.run(authenticator.authenticate, authorization)
        else:
            principal = authenticator.authenticate(authorization)
        return principal, self.policy().for_team(principal.team_id).role_of(principal.role)

    async def let_in(
        self, record: AuditRecord, head: RequestHead, path: str
    ) -> tuple[Principal, Role]:
        """Returns the caller of a plain path and its role. Raises Unauthorized, LoginNeeded,
        UnknownRoute, BadMethod, RoleNeeded or OriginNotAllowed."""
        authorization = authorization_of(head.fields.get)
        token = None if authorization else cookie_token(head)
        try:
            principal, role = await self.identify(f"Bearer {token}" if token else authorization)
        except Unauthorized as error:
            if not authorization and _wants_page(head):
                raise LoginNeeded(error.reason) from error
            raise
        record.team_id, record.token_id = principal.team_id, principal.token_id
        needed = needed_role(record.method, path)
        if role < needed:
            if not (allowed := allowed_methods(path)):
                raise UnknownRoute(record.method, path, TEAM_PATHS)
            if record.method not in allowed:
                raise BadMethod(record.method, path, ", ".join(allowed))
            raise RoleNeeded(f"{record.method} {path}"[:256], str(role), str(needed))
        is_read = record.method in ("GET", "HEAD") and needed < Role.OPERATOR
        if token and not is_read:
            check_own_page(head)
        return principal, role


def origins_for(head: RequestHead, listed: Collection[str]) -> Collection[str]:
    """Returns the origins whose pages may send this request.

    Pages on the browser's own machine may use only what every team may use. A token with more
    rights is for programs, and for pages that are listed by name.
    """
    if LOCAL not in listed or "origin" not in head.fields:
        return listed
    method = head.fields.get("access-control-request-method") if is_preflight(head) else head.method
    try:
        is_for_teams = needed_role(method or "", plain_path(head.target)) is Role.TEAM
    except BadRequest:
        is_for_teams = False
    return listed if is_for_teams else [each for each in listed if each != LOCAL]


def cookie_token(head: RequestHead) -> str | None:
    """Returns the token in the login's cookie."""
    for part in head.fields.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and value:
            return value
    return None


def _wants_page(head: RequestHead) -> bool:
    """Returns whether a browser asks for a page, with which it cannot send a token."""
    return head.method in ("GET", "HEAD") and "text/html" in head.fields.get("accept", "").lower()
