"""Loopback ports for the servers that tests start."""

from benchmarking.serving import free_port, given_ports

__all__ = ["free_port", "free_ports", "leave_to_other_workers"]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that nobody here was given before."""
    return [free_port() for _ in range(count)]


def leave_to_other_workers(number: int, num_workers: int) -> None:
    """Give only every so manieth port: between the choice of a port and its use, another worker's
    tests choose too. The kernel chooses odd ones only, while there are any."""
    given_ports.update(port for port in range(2**16) if port // 2 % num_workers != number)
