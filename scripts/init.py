#!/usr/bin/env python3
"""Write `.env` for docker compose, with new secrets for docker-compose.yml.

`hearth init` is the same command; as a script it needs only Python. If NVIDIA's driver is
installed, compose gets the setting to use the GPU.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

ENV = Path(".env")
SECRET_BYTES = 48
DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))  # /dev/dxg is WSL's
GPU_FILES = "COMPOSE_FILE=docker-compose.yml:docker-compose.gpu.yml\n"
NEXT = f"""{ENV} now has the secrets and only you can read it. Next:

docker compose up --build --detach
docker compose exec proxy hearth token add research

For the dashboard, make a token with --role viewer: http://localhost:1223/login"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write .env with the secrets for docker compose.")
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace an existing .env; earlier tokens become invalid",
    )
    has_gpu = any(path.exists() for path in DRIVER_FILES)
    try:
        write(ENV, content(has_gpu), parser.parse_args(argv).force)
    except FileExistsError:
        print(f"{ENV} already exists and was not changed; replace it with --force", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"{ENV} cannot be written in {Path.cwd()} ({error.strerror}); run this in your clone",
            file=sys.stderr,
        )
        return 1
    print(NEXT)
    return 0


def content(has_gpu: bool) -> str:
    return (
        "# Settings of docker-compose.yml, read by docker compose; kept to yourself.\n"
        f"JWT_SECRET={secrets.token_urlsafe(SECRET_BYTES)}\n"
        f"GRAFANA_PASSWORD={secrets.token_urlsafe(SECRET_BYTES)}\n"
        f"{GPU_FILES if has_gpu else ''}"
    )


def write(path: Path, text: str, replace: bool) -> None:
    """Writes all or nothing, for the owner alone. Raises FileExistsError, unless `replace`."""
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        if replace:
            scratch.replace(path)
        else:
            os.link(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
