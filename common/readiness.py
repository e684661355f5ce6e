"""Asks what a socket is ready for, without waiting."""

import select
import socket


def is_readable(sock: socket.socket) -> bool:
    """Returns whether bytes, or the peer's end, can be read."""
    return _is_ready(sock, select.POLLIN)


def is_writable(sock: socket.socket) -> bool:
    """Returns whether a few bytes can be written without waiting."""
    return _is_ready(sock, select.POLLOUT)


def _is_ready(sock: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(0))
