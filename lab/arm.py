"""`make test-arm-wheel`: the wheel for ARM serves on a machine that is none, under qemu.

Debian's Python for arm64 is unpacked into a scratch folder, and beside it what pip would install
there. Arguments: the wheel, then models to serve besides the embedded one. Needs root and
debootstrap, and the indexes of pip and apt.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from inference_api.settings import EMBEDDED_MODEL
from lab.kernels.emulate import EMULATOR, PROCESSORS
from lab.kit.servers import ServedApi, served_by

RELEASE, PYTHON = "bookworm", "3.11"
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_28_aarch64")
QUESTION = "Have you been to Paris, France?"
INSTALL_TIMEOUT_S = 900
START_TIMEOUT_S = 1800  # a processor is emulated, instruction by instruction


def main() -> int:
    if missing := [each for each in (EMULATOR, "debootstrap") if shutil.which(each) is None]:
        sys.exit(f"There is no {missing[0]}; sudo apt-get install qemu-user-static debootstrap")
    wheel, *models = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="hearth-arm-") as name:
        folder = Path(name)
        start = partial(run_module, unpack_debian(folder / "debian"), install(wheel, folder))
        for model in [EMBEDDED_MODEL, *(model.resolve() for model in models)]:
            settings = {"MODEL": model, "MODEL_NAME": "model", "USER_ROWS": 1, "PATH": "/nowhere"}
            with served_by(start, folder / "log", None, START_TIMEOUT_S, **settings) as api:
                print(f"{model.name}: {answer(api)!r}", flush=True)
    return 0


def unpack_debian(root: Path) -> Path:
    """Nothing of it has to run for that."""
    command = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", "--include=python3"]
    subprocess.run(
        [*command, RELEASE, root],
        stdout=subprocess.DEVNULL,
        timeout=INSTALL_TIMEOUT_S,
        check=True,
    )
    for package in root.glob("var/cache/apt/archives/*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, root], timeout=60, check=True)
    return root


def install(wheel: Path, folder: Path) -> Path:
    """Returns where the packages are."""
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    for_arm = [f"--platform={platform}" for platform in PLATFORMS]
    for_arm += [f"--python-version={PYTHON}", "--only-binary=:all:"]
    what = f"{wheel.resolve()}[serve]"
    subprocess.run(
        [*command, f"--target={site}", *for_arm, what], timeout=INSTALL_TIMEOUT_S, check=True
    )
    return site


def run_module(
    root: Path, site: Path, arguments: Sequence[str], log: BinaryIO, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """As lab.kit.servers.Start says."""
    emulator = [shutil.which(EMULATOR) or EMULATOR, "-cpu", PROCESSORS["i8mm"], "-L", str(root)]
    return subprocess.Popen(
        [*emulator, f"{root}/usr/bin/python{PYTHON}", "-m", *arguments],
        cwd=site / "inference_api" / "shipped",
        env={**env, "PYTHONPATH": str(site)},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def answer(api: ServedApi) -> str:
    """Raises AssertionError when other kernels are used than this processor's, or none."""
    assert " by kernels of i8mm " in api.log, api.log
    body = {"model": "model", "prompt": QUESTION, "max_tokens": 8, "temperature": 0}
    completion = api.post("/v1/completions", **body).json()
    assert completion["usage"]["completion_tokens"] == 8, completion
    return str(completion["choices"][0]["text"])


if __name__ == "__main__":
    sys.exit(main())
