"""Asks what a socket is ready for, without waiting."""

import select
import socket


def polling(sock: socket.socket, event: int = select.POLLIN) -> select.poll:
    """Returns what tells by `poll(0)` whether a socket is ready: bytes, or the peer's end, can be
    read; with POLLOUT, a few bytes can be written."""
    poll = select.poll()
    poll.register(sock, event)
    return poll
