"""Detects peers whose machine has died without sending a FIN.

While the proxy waits, keepalive probes find them; while it sends, unacknowledged bytes do.
"""

import socket

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3


def find_dead_peers(sock: socket.socket, timeout_s: float) -> None:
    """Sets options of a TCP socket, or of a listener for all its connections. A peer that
    acknowledges no sent bytes for `timeout_s` counts as dead."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))
