"""Asks what a socket is ready for, without waiting."""

import select
import socket


def is_readable(sock: socket.socket) -> bool:
    """Returns whether bytes, or the end of the peer's bytes, can be read."""
    return bool(reading(sock).poll(0))


def is_writable(sock: socket.socket) -> bool:
    """Returns whether a few bytes can be written without waiting."""
    return bool(_polling(sock, select.POLLOUT).poll(0))


def reading(sock: socket.socket) -> select.poll:
    """Returns an object to ask again and again, by `poll(0)`, whether a socket is readable."""
    return _polling(sock, select.POLLIN)


def _polling(sock: socket.socket, event: int) -> select.poll:
    poll = select.poll()
    poll.register(sock, event)
    return poll
