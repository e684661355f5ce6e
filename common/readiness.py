"""What a socket is ready for now, without waiting."""

import select
import socket


def is_readable(sock: socket.socket) -> bool:
    """Whether bytes, or the peer's end, wait to be read."""
    return _is_ready(sock, select.POLLIN)


def is_writable(sock: socket.socket) -> bool:
    """Whether a few bytes can be written without waiting for the peer to read others."""
    return _is_ready(sock, select.POLLOUT)


def _is_ready(sock: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(0))
