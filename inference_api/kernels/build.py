"""Compiles `src/` into one shared library, once for each state of sources, flags and compiler.

Each variant (one instruction set) is a translation unit with flags of its own; which of them runs
is decided when the library is used. Variants that this processor cannot run are left out.
`python -m inference_api.kernels.build` builds ahead of time; with `--beside` every variant, beside
the sources, where an image keeps them: it then needs no compiler. Loads no packages in a clone, so
that `make serve` compiles while it installs them.
"""

import argparse
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.files import whole_file
from inference_api.shipped_files import CACHE

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).resolve().parent / "src"
# In order of preference: the folder for made things, else beside the sources.
BESIDE = SOURCES.parent / "built"
FOLDERS = (CACHE / "kernels", BESIDE)
COMPILERS = ("g++", "clang++", "c++")
TIMEOUT_S = 300
MAX_BUILDS = 4  # builds to keep, for checkouts and compilers that take turns

FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # a product and a sum are fused where the source says so, nowhere else
)
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni")
UNITS: Mapping[str, Sequence[str]] = {
    "draw": (),
    "experts": (),
    "guess": (),
    "interface": (),
    "pool": (),
    "step": (),
    "workers": (),
    "variant_portable": (),
}
X86_UNITS: Mapping[str, Sequence[str]] = {
    "variant_avx2": AVX2,
    "variant_avxvnni": (*AVX2, "-mavxvnni"),
    "variant_avx512vnni": AVX512,
    "variant_amx": (*AVX512, "-mamx-tile", "-mamx-int8"),
}
VARIANT = "variant_"  # what the names of their units begin with
PROCESSOR = Path("/proc/cpuinfo")


class BuildFailed(Exception):
    """The library could not be built; the message says why and what to do."""


def library_path(folders: Sequence[Path] | None = None, for_any_processor: bool = False) -> Path:
    """The library, built first if it is not there yet; where there is no compiler, one that
    another compiler has made of the same sources will do. Raises BuildFailed.

    `folders`: where it may lie, in order of preference; default: FOLDERS. Processes that build at
    the same time do not disturb each other: each writes elsewhere and moves the finished file to
    its place.
    """
    folders = FOLDERS if folders is None else folders
    left_out = [] if for_any_processor else variants_left_out()
    sources = f"hearth_kernels-{_fingerprint()}"
    try:
        compiler = find_compiler()
    except BuildFailed:
        made = [built for folder in folders for built in folder.glob(f"{sources}-*.so")]
        if not made:
            raise
        return max(made, key=_made_ns)
    name = "-".join([sources, _version(compiler), *(f"no_{each}" for each in left_out)]) + ".so"
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    folder = _writable_folder(folders)
    logger.info("compiling the kernels, once: this takes half a minute")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects = compile_units(compiler, units(left_out), FLAGS, Path(scratch))
        with whole_file(folder / name) as draft:
            link(compiler, objects, FLAGS, draft)
    _remove_old_builds(folder)
    return folder / name


def units(left_out: Sequence[str] = ()) -> dict[str, Sequence[str]]:
    """The translation units for this kind of processor, and the flags that each adds to the common
    ones. Variants `left_out` have none, and the interface does not offer them."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    every = {**UNITS, **(X86_UNITS if is_x86 else {})}
    kept = {unit: every[unit] for unit in every if unit.removeprefix(VARIANT) not in left_out}
    lacks = [f"-DHEARTH_WITHOUT_{name.upper()}" for name in left_out]
    return kept | {"interface": [*every["interface"], *lacks]} if lacks else kept


def variants_left_out() -> list[str]:
    """Returns the variants whose instructions this processor lacks, as far as Linux tells."""
    try:
        lines = PROCESSOR.read_text().splitlines()
    except OSError:
        return []
    [flags, *_] = [*(line for line in lines if line.startswith("flags")), ""]
    has = set(flags.replace("_", "").split())
    needed = {
        unit.removeprefix(VARIANT): {flag.removeprefix("-m").replace("-", "") for flag in extra}
        for unit, extra in units().items()
        if unit.startswith(VARIANT)
    }
    return [name for name, instructions in needed.items() if has and not instructions <= has]


def compile_units(
    compiler: str, units: Mapping[str, Sequence[str]], flags: Sequence[str], folder: Path
) -> list[Path]:
    """Compile all `units` at the same time, into object files in `folder`. Raises BuildFailed."""
    commands = {
        folder / f"{unit}.o": [compiler, *flags, *extra, "-c", str(SOURCES / f"{unit}.cpp"), "-o"]
        for unit, extra in units.items()
    }
    _run([[*command, str(target)] for target, command in commands.items()])
    return list(commands)


def link(
    compiler: str, objects: Sequence[Path], flags: Sequence[str], target: Path, shared: bool = True
) -> None:
    """Raises BuildFailed."""
    kind = ["-shared"] if shared else []
    _run([[compiler, *flags, *kind, *map(str, objects), "-o", str(target)]])


def find_compiler() -> str:
    """The path of a C++ compiler. Raises BuildFailed."""
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise BuildFailed(
        "there is no C++ compiler; install one (on Debian: apt-get install g++) and start again"
    )


def _fingerprint() -> str:
    """Changes with everything that the library is made from, but for the compiler."""
    digest = hashlib.sha256()
    digest.update(repr((FLAGS, sorted(units().items()), platform.machine())).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _version(compiler: str) -> str:
    """Changes with the compiler's release."""
    told = subprocess.run([compiler, "--version"], capture_output=True, timeout=TIMEOUT_S)
    return hashlib.sha256(told.stdout).hexdigest()[:8]


def _made_ns(built: Path) -> int:
    return built.stat().st_mtime_ns


def _remove_old_builds(folder: Path) -> None:
    """All but the newest. A process that has one loaded keeps it."""
    builds = sorted(folder.glob("hearth_kernels-*.so"), key=_made_ns)
    for build in builds[:-MAX_BUILDS]:
        build.unlink(missing_ok=True)


def _writable_folder(folders: Sequence[Path]) -> Path:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise BuildFailed(f"{' and '.join(map(str, folders))} cannot be written; make one writable")


def _run(commands: Sequence[list[str]]) -> None:
    """Run all commands at the same time and wait for all of them. Raises BuildFailed."""
    with ThreadPoolExecutor(max_workers=len(commands)) as threads:
        failures = [failure for failure in threads.map(_failure, commands) if failure]
    if failures:
        raise BuildFailed(failures[0])


def _failure(command: list[str]) -> str:
    """Run `command`; why it failed, or nothing."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"compiling took more than {TIMEOUT_S} s; try again when the machine is less busy"
    if done.returncode == 0:
        return ""
    return (
        f"the compiler failed; use GCC 11, Clang 12 or newer. {' '.join(command)}: "
        f"{done.stdout.strip()[-2000:]}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the kernels ahead of time.")
    parser.add_argument(
        "--beside", action="store_true", help="beside the sources, not where made things are kept"
    )
    try:
        made = library_path((BESIDE,), True) if parser.parse_args().beside else library_path()
        print(f"kernels: {made}")
    except BuildFailed as failure:
        sys.exit(f"The kernels cannot be built: {failure}.")
