"""`python -m weights`: the weights service on WEIGHTS_HOST and WEIGHTS_PORT, or with `drive` the
search in an engine of others.
"""

import argparse
import sys

from common.launcher import serve_threaded
from weights.app import create_app
from weights.errors import StartupError
from weights.settings import load_settings


def main() -> None:
    if sys.argv[1:2] == ["drive"]:
        from weights.drivers import command  # and what it needs, which serving does not

        command.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description="Serve the weights search alone.")
    parser.add_argument(
        "drive",
        nargs="?",
        choices=["drive"],
        help="run the search with another engine: drive --help",
    )
    parser.parse_args()
    settings = load_settings()
    serve_threaded(
        settings.host,
        settings.port,
        settings.threads,
        settings.max_body_bytes,
        lambda: create_app(settings),
    )


if __name__ == "__main__":
    try:
        main()
    except StartupError as error:
        sys.exit(str(error))
