"""`python -m weights`: the weights service on WEIGHTS_HOST and WEIGHTS_PORT."""

import logging
import runpy
import sys
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication

from weights.app import create_app
from weights.errors import StartupError


class _Server(BaseApplication):
    """Gunicorn with our configuration file, in this process."""

    def load_config(self) -> None:
        values: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("gunicorn.conf.py")))
        for key, value in values.items():
            if key in self.cfg.settings:
                self.cfg.set(key, value)

    def load(self) -> Any:
        return create_app()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    _Server().run()


if __name__ == "__main__":
    try:
        main()
    except StartupError as error:
        sys.exit(str(error))
