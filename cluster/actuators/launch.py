"""A small program that becomes a replica's process: Hearth's API or another engine.

It can pin itself to cores and end with its parent process. It is a separate program because code
between fork and exec may hang in a process with threads.
"""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from common.processes import end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a replica.")
    parser.add_argument("--cores", type=_cores, help="cores to pin it to, such as 0,1")
    parser.add_argument("--parent", type=int, help="drain and end when this process ends")
    parser.add_argument("command", nargs="*", help="another engine's, instead of Hearth's API")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, arguments.cores)
    if arguments.parent:
        end_with_parent(parent=arguments.parent)
    hearth = [sys.executable, "-m", "gunicorn", "--config", str(api_config())]
    command = arguments.command or hearth
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run ({error.strerror}); install it or give its path.")


def api_config() -> Path:
    """Returns the path of the API's gunicorn.conf.py, from a wheel or the top of a clone."""
    spec = find_spec("inference_api")
    if spec is None or spec.origin is None:
        sys.exit("Hearth is not installed on this machine: pip install 'hearth[cluster]'.")
    package = Path(spec.origin).parent
    shipped = package / "shipped"
    return (shipped if shipped.exists() else package.parent) / "gunicorn.conf.py"


def _cores(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split(",")))


if __name__ == "__main__":
    main()
