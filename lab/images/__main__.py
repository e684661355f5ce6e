"""`make image-check`: builds the Dockerfile's images in scratch folders, prints what is in each,
and starts it as its user until its probe is content.

For machines without a container engine. A stage is a layer of an overlay file system, and its
commands run as they stand, by chroot. In place of the base image is a Debian of the same release
and Python, made by debootstrap or named by --base: sizes are of what Hearth adds. Needs root,
debootstrap, and the indexes of pip and apt. An image is started in a network of its own.
"""

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from lab.images.dockerfile import Stage, read_stages

TOP = Path(__file__).resolve().parents[2]
USER = 1000
# What an image needs to start that it does not bring, or what is tried in place of its command.
GIVEN = {"proxy": {"JWT_SECRET": secrets.token_hex()}}
TRIED = {"cluster": ["python", "-m", "cluster", "--help"]}
FIND_KERNELS = ["python", "-c", "from inference_api.kernels import build; build.library_path()"]
COMPILERS = ("g++", "gcc", "cc", "c++", "clang++")
BASE_PACKAGES = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
RELEASE = "bookworm"
START_TIMEOUT_S = 120
POLL_S = 0.2
MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description="Build, measure and start the images, here.")
    parser.add_argument("images", nargs="*", help="default: all that have an install of their own")
    parser.add_argument("--base", type=Path, help="a folder that debootstrap has made before")
    parser.add_argument(
        "--bind",
        type=Path,
        action="append",
        default=[],
        help="what pip reads here, to be seen there",
    )
    parser.add_argument("--cuda", action="store_true", help="the API with torch")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("Only root may mount and chroot; start it with sudo.")
    if options.inside is None:
        # Mounts end with their namespace: nothing of them is in the folder that is removed here.
        with tempfile.TemporaryDirectory(prefix="hearth-images-") as folder:
            again = ["unshare", "--mount", sys.executable, "-m", "lab.images"]
            return subprocess.run([*again, *sys.argv[1:], "--inside", folder], cwd=TOP).returncode
    stages = read_stages(TOP / "Dockerfile")
    images = options.images or [
        each.name for each in stages.values() if each.steps and each.is_image
    ]
    base = options.base or bootstrapped(options.inside / "base")
    build = Build(stages, options.inside, base, options.bind)
    if options.cuda:
        build.arguments["CUDA"] = "1"
    print("| image | packages, MiB | Hearth, MiB | torch | kernels | a compiler | ready after, s |")
    print("|---|---|---|---|---|---|---|")
    for name in images:
        print(line_of(stages[name], build), flush=True)
    return 0


def bootstrapped(folder: Path) -> Path:
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={BASE_PACKAGES}",
        RELEASE,
        str(folder),
    ]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return folder


class Build:
    """Roots of stages, each mounted when it is first asked for."""

    def __init__(
        self, stages: Mapping[str, Stage], folder: Path, base: Path, binds: Sequence[Path]
    ) -> None:
        self.arguments: dict[str, str] = {}
        self._stages, self._folder, self._base, self._binds = stages, folder, base, binds
        self._roots: dict[str, Path] = {}
        self._layers: dict[str, list[Path]] = {}  # the uppermost first

    def root(self, stage: Stage) -> Path:
        if stage.name not in self._roots:
            self._make(stage)
        return self._roots[stage.name]

    def run(
        self, stage: Stage, command: Sequence[str], *, user: int = 0, beside: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start it in the stage's root; as `user`, in a network of its own or that of a process."""
        root = self._roots[stage.name]
        network: list[str] = []
        if beside is not None:
            network = ["nsenter", f"--net=/proc/{beside}/ns/net"]
        elif user:
            network = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        inside = ["sh", "-c", 'cd /hearth 2>/dev/null; exec "$@"', "sh", *command]
        return subprocess.Popen(
            [*network, "chroot", f"--userspec={user}:{user}", str(root), *inside],
            env=self._environment(stage) | {"HOME": "/home/hearth" if user else "/root"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def succeeds(self, stage: Stage, command: Sequence[str], beside: int | None = None) -> bool:
        """Whether `command` does, as the user, in the network of the process `beside` if given."""
        asked = self.run(stage, command, user=USER, beside=beside)
        asked.communicate()
        return asked.returncode == 0

    def _environment(self, stage: Stage) -> dict[str, str]:
        """The image's; while it is built its arguments too, and where pip looks here."""
        ours = os.environ.items()  # noqa: TID251
        pip = {name: value for name, value in ours if name.startswith("PIP_")}
        return pip | self.arguments | stage.environment | GIVEN.get(stage.name, {})

    def _make(self, stage: Stage) -> None:
        if isinstance(stage.base, Stage):
            self.root(stage.base)
            below = self._layers[stage.base.name]
        else:
            below = [self._base]
        layer, work, root = (self._folder / stage.name / part for part in ("layer", "work", "root"))
        for each in (layer, work, root):
            each.mkdir(parents=True)
        lower = ":".join(map(str, below))
        folders = f"lowerdir={lower},upperdir={layer},workdir={work}"
        mount("-t", "overlay", "-o", folders, "overlay", root)
        self._layers[stage.name] = [layer, *below]
        self._roots[stage.name] = root
        for path in (Path("/proc"), Path("/dev"), Path("/etc/resolv.conf"), *self._binds):
            bind(path, root)
        for instruction, rest in stage.steps:
            match instruction:
                case "COPY":
                    self._copy(root, rest.split())
                case "ARG" if "=" in rest:
                    self.arguments.setdefault(*rest.split("=", 1))
                case "RUN":
                    done = self.run(stage, ["sh", "-c", rest])
                    output, _ = done.communicate()
                    if done.returncode != 0:
                        sys.exit(f"{stage.name}: {rest}\n{output.decode(errors='replace')}")

    def _copy(self, root: Path, words: list[str]) -> None:
        source = TOP
        if words[0].startswith("--from="):
            source = self.root(self._stages[words.pop(0).removeprefix("--from=")])
        ignore = dockerignored if source == TOP else None
        *names, target = words
        place = root / "hearth" / target if not target.startswith("/") else root / target[1:]
        for name in names:
            found = source / name.lstrip("/")
            if found.is_dir():
                shutil.copytree(found, place, symlinks=True, ignore=ignore, dirs_exist_ok=True)
            else:
                shutil.copy2(found, place)


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def bind(path: Path, root: Path) -> None:
    """Show `path` of this machine at the same place in `root`."""
    place = root / str(path.resolve())[1:]
    if path.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount("--bind", path.resolve(), place)


def dockerignored(folder: str, names: list[str]) -> set[str]:
    """What `.dockerignore` keeps out, for shutil.copytree."""
    patterns = (TOP / ".dockerignore").read_text().split()
    paths = {name: str((Path(folder) / name).relative_to(TOP)) for name in names}
    return {
        name
        for name, path in paths.items()
        if any(fnmatch(path, each) or fnmatch(f"/{path}", f"/{each}") for each in patterns)
        or any(each.startswith("**/") and fnmatch(name, each[3:]) for each in patterns)
    }


def line_of(stage: Stage, build: Build) -> str:
    """Of the table. Ends the program where an image does not work."""
    root = build.root(stage)
    sizes = [size_bytes(root / folder) / MIB for folder in ("opt/hearth", "hearth")]
    torch = any((root / "opt/hearth/lib").glob("python*/site-packages/torch"))
    compiler = any((root / "usr/bin" / name).exists() for name in COMPILERS)
    has_library = any((root / "hearth/inference_api/kernels/built").glob("*.so"))
    kernels = has_library and build.succeeds(stage, FIND_KERNELS)
    marks = ["yes" if each else "no" for each in (torch, kernels, compiler)]
    cells = [stage.name, *(f"{size:.0f}" for size in sizes), *marks, started(stage, build)]
    return f"| {' | '.join(cells)} |"


def size_bytes(folder: Path) -> int:
    """Of its files; links count nothing."""
    files = (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    return sum(each.stat().st_size for each in files)


def started(stage: Stage, build: Build) -> str:
    """Seconds until the probe was content, or until a command without a probe ended well."""
    command = TRIED.get(stage.name, stage.command)
    probe = [] if stage.name in TRIED else stage.probe
    begin_s = time.monotonic()
    process = build.run(stage, command, user=USER)
    try:
        while time.monotonic() - begin_s < START_TIMEOUT_S:
            is_running = process.poll() is None
            if (probe and is_running and build.succeeds(stage, probe, process.pid)) or (
                not probe and process.returncode == 0
            ):
                return f"{time.monotonic() - begin_s:.1f}"
            if not is_running:
                break
            time.sleep(POLL_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    sys.exit(f"{stage.name}: {command} is not ready\n{output.decode(errors='replace')}")


if __name__ == "__main__":
    sys.exit(main())
