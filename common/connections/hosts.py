"""Hosts as HTTP and URLs write them. Pure."""

import re

# HTTP/1.1 requires one valid Host field (RFC 9112, section 3.2), which may be empty. Only the
# characters of RFC 3986's host and port are checked.
_HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


def host_fault(host: str | None, *, is_http_1_0: bool) -> str | None:
    """Returns why a request is refused; None if its Host field, or the lack of one, is valid."""
    if host is None:
        return None if is_http_1_0 else "HTTP/1.1 asks for the field 'Host', which did not come"
    return None if _HOST.fullmatch(host) else "the field 'Host' names no host and port"


def host_and_port(host: str, port: int) -> str:
    """Returns host and port as in a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
