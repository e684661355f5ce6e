"""`python -m weights`: the weights service on WEIGHTS_HOST and WEIGHTS_PORT."""

import argparse
import sys

from common.launcher import serve_threaded
from weights.app import create_app
from weights.errors import StartupError
from weights.settings import load_settings


def main() -> None:
    argparse.ArgumentParser(description="Serve the weights search alone.").parse_args()
    settings = load_settings()
    serve_threaded(settings.host, settings.port, settings.threads, lambda: create_app(settings))


if __name__ == "__main__":
    try:
        main()
    except StartupError as error:
        sys.exit(str(error))
