"""Hosts and ports as HTTP and URLs write them. Sockets: where a server can listen, what a socket is
ready for, and whether its peer is dead."""

import re
import select
import socket

# HTTP/1.1 requires one valid Host field (RFC 9112, section 3.2), which may be empty. Only the
# characters of RFC 3986's host and port are checked.
_HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3


def host_fault(host: str | None, *, is_http_1_0: bool) -> str | None:
    """Returns why a request is refused; None if its Host field, or the lack of one, is valid."""
    if host is None:
        return None if is_http_1_0 else "HTTP/1.1 asks for the field 'Host', which did not come"
    return None if _HOST.fullmatch(host) else "the field 'Host' names no host and port"


def host_and_port(host: str, port: int) -> str:
    """Returns host and port as in a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_faults(host: str, port: int, names: tuple[str, str]) -> list[str]:
    """Returns why no server can listen there; empty if one can. `names` are the settings' names."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, TypeError, ValueError) as error:  # the last two for an invalid host name
        reason = error.strerror if isinstance(error, OSError) else error
        return [
            f"{names[0]}={host!r}, {names[1]}={port} cannot be bound ({reason}); stop what "
            "holds the port or choose another."
        ]
    return []


def polling(sock: socket.socket, event: int = select.POLLIN) -> select.poll:
    """Returns what tells by `poll(0)` whether a socket is ready: bytes, or the peer's end, can be
    read; with POLLOUT, a few bytes can be written."""
    poll = select.poll()
    poll.register(sock, event)
    return poll


def find_dead_peers(sock: socket.socket, timeout_s: float) -> None:
    """Detects peers whose machine has died without sending a FIN, by options of a TCP socket, or of
    a listener for all its connections: by probes while we wait, and by bytes that are not
    acknowledged for `timeout_s` while we send."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))
