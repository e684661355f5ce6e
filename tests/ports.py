"""Loopback ports for the servers that tests start."""

from lab.kit.servers import PORTS, free_port, given_ports, is_free

__all__ = ["free_port", "free_ports", "leave_to_other_workers", "neighbouring_ports"]

PORTS_OF_A_WORKER = 8  # in a row


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that nobody here was given before."""
    return [free_port() for _ in range(count)]


def neighbouring_ports(count: int) -> int:
    """The first of so many free ports in a row, none of which anybody here was given before."""
    for first in PORTS:
        row = range(first, first + count)
        if given_ports.isdisjoint(row) and all(map(is_free, row)):
            given_ports.update(row)
            return first
    raise AssertionError(f"no {count} free ports in a row")


def leave_to_other_workers(number: int, num_workers: int) -> None:
    """Give only the ports that are this worker's: between the choice of one and its use, another
    worker's tests choose too."""
    given_ports.update(port for port in PORTS if port // PORTS_OF_A_WORKER % num_workers != number)
