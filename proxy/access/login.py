"""`/login` and `/logout` give a browser access to the dashboard, because it cannot send a token in
a header when it requests a page.

The token comes in a form's body, never in a URL. After a check, the browser keeps it in a cookie
that scripts cannot read and other sites cannot make it send. Nothing is stored here.
"""

import time
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from urllib.parse import parse_qs

from proxy.access.gate import COOKIE, Gate
from proxy.access.roles import Role
from proxy.clients.inbound import RequestBody
from proxy.clients.origins import check_own_page
from proxy.clients.request_head import RequestHead
from proxy.errors import BadMethod, Headers, NotAForm, Unauthorized

LOGIN_PATH = "/login"
LOGOUT_PATH = "/logout"
MAX_FORM_BYTES = 8 * 1024
# Browsers drop cookies of more than 4096 bytes, including name and attributes.
MAX_COOKIE_TOKEN_CHARS = 3900

_FOLDER = Path(__file__).resolve().parent
_STYLE = (_FOLDER / "login.css").read_text(encoding="utf-8")
_PAGE = (_FOLDER / "login.html").read_text(encoding="utf-8").replace("{style}", _STYLE)
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
PAGE_HEADERS: Headers = [
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    # With no-referrer, browsers would send `Origin: null` with the form.
    ("Referrer-Policy", "same-origin"),
]


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of the login. `reason` is for the audit line of a refusal."""

    status: int
    headers: Headers
    body: bytes = b""
    reason: str | None = None


async def login_page(gate: Gate, head: RequestHead, body: RequestBody, path: str) -> Page:
    """Returns the answer. Raises BadMethod, OriginNotAllowed, NotAForm, and body errors."""
    method = head.method
    if method in ("GET", "HEAD"):
        if path == LOGIN_PATH:
            return Page(200, PAGE_HEADERS, _page())
        return _redirect(LOGIN_PATH, _cookie("", False, 0))  # deletes it
    if path == LOGOUT_PATH or method != "POST":
        raise BadMethod(method, path, "GET, HEAD" if path == LOGOUT_PATH else "GET, HEAD, POST")
    check_own_page(head)
    await body.read_prefix(MAX_FORM_BYTES, "a login is one token of at most 3900 characters")
    return await _enter(gate, head, body.prefix)


async def _enter(gate: Gate, head: RequestHead, form: bytes) -> Page:
    """Redirect to the dashboard with a cookie, or show the form with the fault."""
    content_type = head.fields.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        raise NotAForm("The login takes application/x-www-form-urlencoded, a form's fields.")
    token = _token_of(form)
    try:
        principal, role = await gate.identify(f"Bearer {token}")
    except Unauthorized as error:
        return _refused(401, "The proxy refused this token.", error.reason)
    if role < Role.VIEWER:
        fault = "This token may generate only; the dashboard needs the role viewer or operator."
        return _refused(403, fault, fault)
    if len(token) > MAX_COOKIE_TOKEN_CHARS:
        fault = f"Browsers keep tokens of at most {MAX_COOKIE_TOKEN_CHARS} characters."
        return _refused(400, fault, fault)
    # Behind a TLS terminator only the browser's Origin tells, which forms always send.
    is_secure = head.scheme == "https" or head.fields.get("origin", "").startswith("https://")
    max_age_s = None  # without an expiry, the browser keeps it until it closes
    if principal.expires_s is not None:
        max_age_s = max(0, int(principal.expires_s - time.time()))
    return _redirect("/", _cookie(token, is_secure, max_age_s))


def _redirect(path: str, cookie: str) -> Page:
    return Page(303, [("Location", path), ("Set-Cookie", cookie)])


def _token_of(form: bytes) -> str:
    try:
        fields = parse_qs(form.decode("ascii"), max_num_fields=8)
    except ValueError:
        return ""
    return fields.get("token", [""])[0].strip()


def _cookie(token: str, is_secure: bool, max_age_s: int | None) -> str:
    cookie = f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
    if is_secure:
        cookie += "; Secure"
    return cookie if max_age_s is None else f"{cookie}; Max-Age={max_age_s}"


def _refused(status: int, fault: str, reason: str) -> Page:
    return Page(status, PAGE_HEADERS, _page(fault), reason)


def _page(fault: str = "") -> bytes:
    alert = f'<p role="alert">{escape(fault)}</p>' if fault else ""
    return _PAGE.replace("{fault}", alert).encode()
