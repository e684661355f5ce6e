"""Installs packages into the environment of this Python, as `pip install` does: by uv, which is
faster, or else by pip. For the Makefile.

uv reads none of pip's configuration, so it is given what that says of indexes, certificates and
proxies. Where the configuration says more, or uv does not succeed, pip installs.

Neither compiles the modules: Python does, where they are imported, and keeps them. All that the
packages have would take a minute of every install.
"""

import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path

UV = Path(sys.executable).with_name("uv")
UV_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "constraint": "UV_CONSTRAINT",
    "extra-index-url": "UV_INDEX",  # an option --extra-index-url adds to it
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST",
}
# What does not change which packages are installed, nor where from.
WITHOUT_EFFECT = {
    *("break-system-packages", "cache-dir", "default-timeout", "disable-pip-version-check"),
    *("no-cache-dir", "no-color", "no-input", "no-warn-script-location", "progress-bar", "quiet"),
    *("require-virtualenv", "retries", "root-user-action", "timeout", "verbose"),
}


def main(arguments: list[str]) -> int:
    pip = [sys.executable, "-m", "pip"]
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False)
    variables = uv_variables(listed.stdout) if UV.exists() and listed.returncode == 0 else None
    if variables is not None:
        if _installs_by_uv(arguments, variables):
            return 0
        print("uv did not install them, pip tries", file=sys.stderr)
    install = [*pip, "install", "--quiet", "--no-compile"]
    return subprocess.run([*install, *arguments], check=False).returncode


def uv_variables(pip_config: str) -> dict[str, str] | None:
    """Returns what `pip config list` prints as variables for uv; None where it has no such ones."""
    settings: dict[str, str] = {}
    for line in pip_config.splitlines():  # such as global.find-links='/opt/wheels'
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = literal_eval(value)  # the environment's come last
    if not settings.keys() <= UV_VARIABLES.keys() | WITHOUT_EFFECT:
        return None
    return {
        UV_VARIABLES[name]: ("," if name == "find-links" else " ").join(value.split())
        for name, value in settings.items()
        if name in UV_VARIABLES
    }


def _installs_by_uv(arguments: list[str], variables: Mapping[str, str]) -> bool:
    # As pip does, the newest release of all indexes, and not of the first that has any.
    uv = [str(UV), "pip", "install", "--quiet", "--python", sys.executable]
    uv += ["--index-strategy", "unsafe-best-match"]
    own = dict(os.environ, **variables)
    return subprocess.run([*uv, *arguments], env=own, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
