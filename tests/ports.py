"""Loopback ports for the servers that tests start."""

import os
import socket

from benchmarking.serving import free_port, given_ports

__all__ = ["free_port", "free_ports", "leave_to_other_workers", "neighbouring_ports"]

FIRST_UNASSIGNED = 20_000  # below those that the kernel gives to whoever asks for any


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that nobody here was given before."""
    return [free_port() for _ in range(count)]


def neighbouring_ports(count: int) -> int:
    """The first of so many free ports in a row, where the kernel gives nobody any by itself."""
    for first in range(FIRST_UNASSIGNED + os.getpid() % 5000, 30_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError(f"no {count} free ports in a row")


def leave_to_other_workers(number: int, num_workers: int) -> None:
    """Give only every so manieth port: between the choice of a port and its use, another worker's
    tests choose too. The kernel chooses odd ones only, while there are any."""
    given_ports.update(port for port in range(2**16) if port // 2 % num_workers != number)
