"""`python -m optimizer [-F]`: the optimizer on INFERNO_HOST and INFERNO_PORT.

With -F it keeps a system between requests; without, every request brings its own, unless
OPTIMIZER_STATEFUL says otherwise.
"""

import argparse
import sys

from common.launcher import serve_threaded
from optimizer.app import create_app
from optimizer.errors import StartupError
from optimizer.settings import load_settings


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the optimizer alone.")
    parser.add_argument("-F", action="store_true", help="keep a system between requests")
    is_stateful = parser.parse_args().F
    settings = load_settings()
    if is_stateful:
        settings = settings.model_copy(update={"stateful": True})
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
