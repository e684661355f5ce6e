"""Whether a server can listen where its settings say, and where one can."""

import socket


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
