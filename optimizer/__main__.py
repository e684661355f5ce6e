"""`python -m optimizer [-F]`: the optimizer on INFERNO_HOST and INFERNO_PORT.

With -F as the first argument it keeps a system between requests; without, every request brings
its own, unless OPTIMIZER_STATEFUL says otherwise.
"""

import logging
import runpy
import sys
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication

from optimizer.app import create_app
from optimizer.errors import StartupError
from optimizer.settings import Settings, load_settings


class _Server(BaseApplication):
    """Gunicorn with our configuration file, in this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        values: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("gunicorn.conf.py")))
        for key, value in values.items():
            if key in self.cfg.settings:
                self.cfg.set(key, value)

    def load(self) -> Any:
        return create_app(self._settings)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = load_settings()
    if sys.argv[1:2] == ["-F"]:
        settings = settings.model_copy(update={"stateful": True})
    _Server(settings).run()


if __name__ == "__main__":
    try:
        main()
    except StartupError as error:
        sys.exit(str(error))
