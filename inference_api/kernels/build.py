"""Compiles `src/` into one shared library, once for each state of sources, flags and compiler.

Each variant (one instruction set) has two translation units with flags of their own; some variants
share the second. The variant that runs is chosen when the library is used. A library compiled here
has the best variant that this processor can run; for tests, all that it can run, and those that no
server here would use are compiled in a quarter of the time. A shipped library, in a wheel or an
image, has all variants for a kind of processor (its "machine").
`python -m inference_api.kernels.build` compiles the best variant; with `--variants` all that this
processor can run; with `--beside` all for its machine, beside the sources, where an image keeps
them; with `--release FOLDER` all for every machine, as wheels ship them.
Imports no packages in a clone, so that `make serve` compiles while it installs them.
"""

import argparse
import hashlib
import importlib.util
import logging
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.files import whole_file
from inference_api.kernels.compilers import TIMEOUT_S, BuildFailed, run_all
from inference_api.shipped_files import CACHE

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).resolve().parent / "src"
COMPILED = CACHE / "kernels"  # libraries compiled here
SHIPPED = SOURCES.parent / "built"
COMPILERS = ("g++", "clang++", "c++")
OLDEST_GLIBC = "2.17"  # the version that zig links for, as manylinux2014 requires
MAX_BUILDS = 4  # builds to keep, for checkouts and compilers that take turns

FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # products and sums are fused only where the source says so
)
QUICKLY = ("-Og", "-ftree-sra", "-finline-functions-called-once")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni")
AVX512BF16 = (*AVX512, "-mavx512bf16")
VARIANT = "variant_"  # prefix of the names of variants' units
FORMS = "_forms"  # suffix of the second unit, with products of forms that only files have
FORMS_OF = {"avx512bf16": "avx512vnni", "amx": "avx512vnni"}  # they use another's second unit
USES = {"amx": "avx512bf16"}  # variants that leave some products to another one


def _variants(flags: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Returns the units of variants, best last, and the flags of each."""
    first = {f"{VARIANT}{name}": each for name, each in flags.items()}
    forms = {f"{VARIANT}{each}{FORMS}": flags[each] for each in flags if each not in FORMS_OF}
    return forms | first


UNITS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("codes", "draw", "experts", "guess", "interface", "layer_inputs", "pool"), ()),
    **dict.fromkeys(("recurrent", "step", "streams", "workers"), ()),
    "unpack": ("-O2",),  # is called for single rows, in many forms
    **_variants({"portable": ()}),
}
X86_UNITS = _variants(
    {
        "avx2": AVX2,
        "avxvnni": (*AVX2, "-mavxvnni"),
        "avx512vnni": AVX512,
        "avx512bf16": AVX512BF16,
        "amx": (*AVX512BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    }
)
# GCC would try for half of the time to combine up to four instructions that multiply bytes, which
# it describes at length. With two at most, the products are the same. Clang ignores it.
X86_UNITS[f"{VARIANT}avx2{FORMS}"] = (*AVX2, "--param=max-combine-insns=2")
ARM = "-march=armv8.2-a"
ZIG_ARM = "-mcpu=generic+v8_2a"  # what zig calls ARM
ARM_UNITS = _variants(
    {"neon": (), "dotprod": (f"{ARM}+dotprod",), "i8mm": (f"{ARM}+dotprod+i8mm",)}
)
MACHINES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "x86_64": {**UNITS, **X86_UNITS},
    "aarch64": {**UNITS, **ARM_UNITS},
}
MACHINE = platform.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")
TILES = ("variant_amx", "variant_i8mm")  # variants that multiply whole tiles
PROCESSOR = Path("/proc/cpuinfo")


def library_path() -> Path:
    """Returns the library to load: one compiled here for this processor, else a shipped one, else
    one that is compiled now. Raises BuildFailed.

    Any library of the same sources will do, whichever compiler made it.
    """
    stems = [library_stem(each) for each in _builds()]
    libraries = [library for stem in stems for library in COMPILED.glob(f"{stem}-*.so")]
    if libraries:
        return max(libraries, key=_modified_ns)
    shipped = SHIPPED / f"{library_stem(units())}.so"
    return shipped if shipped.exists() else compiled()


def compiled(wanted: Mapping[str, Sequence[str]] | None = None) -> Path:
    """Returns a library of the compiler at hand for this processor, compiled now if there is none.
    Has the units `wanted`; None accepts any, or compiles the best variant. Raises BuildFailed.

    Processes that build at the same time do not disturb each other: each writes elsewhere and moves
    the finished file to its place.
    """
    compiler = find_compiler()
    version = _version(compiler)
    builds = [wanted] if wanted else _builds()
    targets = {COMPILED / f"{library_stem(each)}-{version}.so": each for each in builds}
    target = next((each for each in targets if each.exists()), [*targets][-1])
    if not target.exists():
        logger.info("compiling the kernels, once: this takes up to half a minute, by zig longer")
        _build(compiler, targets[target], target)
        for old in sorted(COMPILED.glob("hearth_kernels-*.so"), key=_modified_ns)[:-MAX_BUILDS]:
            old.unlink(missing_ok=True)  # a process that has it loaded keeps it
    target.touch()  # the newest library is loaded
    return target


def _builds() -> list[dict[str, Sequence[str]]]:
    """Returns the units of each build for this processor; the last has the best variant alone."""
    return [units_here(), units_of_tests(), units(variants_unused())]


def release(folder: Path) -> list[Path]:
    """Compile a library for each machine into `folder`, for wheels, and leave the object files in a
    folder for each machine. Raises BuildFailed."""
    libraries = []
    for machine, all_units in MACHINES.items():
        objects = folder / machine
        objects.mkdir(parents=True, exist_ok=True)
        libraries.append(folder / f"{library_stem(all_units, machine)}.so")
        object_files = compile_units(zig(machine), all_units, FLAGS, objects)
        link(zig(machine), object_files, [*FLAGS, "-s"], libraries[-1])
    return libraries


def units(left_out: Sequence[str] = ()) -> dict[str, Sequence[str]]:
    """Returns the translation units for this machine, and the flags that each adds to FLAGS.
    Without variants `left_out`: the interface does not offer them, and their units are missing
    unless another variant uses them."""
    flags = MACHINES.get(MACHINE, UNITS)
    variants = [name for name in map(variant_of, flags) if name and name not in left_out]
    used = {f"{VARIANT}{FORMS_OF.get(name, name)}{FORMS}" for name in variants}
    kept = {unit: flags[unit] for unit in flags if variant_of(unit) not in left_out or unit in used}
    lacks = [f"-DHEARTH_WITHOUT_{name.upper()}" for name in left_out]
    return kept | {"interface": [*flags["interface"], *lacks]} if lacks else kept


def units_here() -> dict[str, Sequence[str]]:
    """Returns the units of all variants that this processor can run."""
    return units(variants_left_out())


def units_of_tests() -> dict[str, Sequence[str]]:
    """Returns the units of `units_here`, but variants that no server here would use are optimised
    less: `make test-kernels` runs them as they are shipped."""
    used = units(variants_unused())
    return {
        unit: flags if unit in used else [*flags, *QUICKLY] for unit, flags in units_here().items()
    }


def variant_of(unit: str) -> str | None:
    """Returns the variant that a unit belongs to; None if all variants share it."""
    if not unit.startswith(VARIANT):
        return None
    return unit.removeprefix(VARIANT).removesuffix(FORMS)


def variants_left_out() -> list[str]:
    """Returns the variants whose instructions this processor lacks, as far as Linux tells."""
    try:
        lines = PROCESSOR.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    flag_lines = [line for line in lines if line.startswith(("flags", "Features"))]
    if not flag_lines:
        return []
    has = set(flag_lines[0].replace("_", "").split())
    return [name for name, flags in _all_variants().items() if not _instructions(flags) <= has]


def variants_unused() -> list[str]:
    """Returns the variants that no server here would use: all except the best that this processor
    can run, as far as Linux tells, and one that the best uses."""
    left_out = variants_left_out()
    best = [name for name in _all_variants() if name not in left_out][-1]
    return [name for name in _all_variants() if name not in (best, USES.get(best))]


def _all_variants() -> dict[str, Sequence[str]]:
    """Returns the variants for this machine, best last, and the flags of each."""
    every = {variant_of(unit): flags for unit, flags in units().items()}
    return {name: flags for name, flags in every.items() if name is not None}


def multiplies_tiles() -> bool:
    """Returns whether this processor multiplies whole tiles, as far as Linux tells."""
    return any(unit in TILES for unit in units_here())


def _instructions(flags: Sequence[str]) -> set[str]:
    """Returns Linux's names of the instructions that a compiler's flags allow."""
    allowed = " ".join(flags).replace(f"{ARM}+", "").replace("-m", " ").replace("-", "")
    return set(allowed.replace("dotprod", "asimddp").replace("+", " ").split())


def compile_units(
    compiler: Sequence[str], units: Mapping[str, Sequence[str]], flags: Sequence[str], folder: Path
) -> list[Path]:
    """Compile all `units`. Returns the object files, in `folder`. Raises BuildFailed."""
    arm = ZIG_ARM if "ziglang" in compiler else ARM
    longest_first = sorted(units, key=lambda unit: variant_of(unit) is None)
    commands = {
        folder / f"{unit}.o": [
            *(*compiler, *flags, *(flag.replace(ARM, arm) for flag in units[unit])),
            *("-c", str(SOURCES / f"{unit}.cpp"), "-o"),
        ]
        for unit in longest_first
    }
    run_all([[*command, str(target)] for target, command in commands.items()])
    return list(commands)


def link(
    compiler: Sequence[str],
    objects: Sequence[Path],
    flags: Sequence[str],
    target: Path,
    shared: bool = True,
) -> None:
    """Link `objects` into `target`. Raises BuildFailed."""
    kind = ["-shared"] if shared else []
    run_all([[*compiler, *flags, *kind, *map(str, objects), "-o", str(target)]])


def library_stem(units: Mapping[str, Sequence[str]], machine: str = MACHINE) -> str:
    """Returns the beginning of a library's name, which changes with everything that the library is
    made from except the compiler."""
    digest = hashlib.sha256()
    digest.update(repr((FLAGS, sorted(units.items()))).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return f"hearth_kernels-{digest.hexdigest()[:16]}-{machine}"


def find_compiler() -> list[str]:
    """Returns the command of a C++ compiler: an installed one, else zig. Raises BuildFailed."""
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return zig(MACHINE)
    raise BuildFailed(
        "there is no C++ compiler; install one (pip install ziglang, or on Debian: apt-get install "
        "g++) and start again"
    )


def zig(machine: str, library: str = f"gnu.{OLDEST_GLIBC}") -> list[str]:
    """Returns the command of the compiler in the package ziglang, for a kind of processor and this
    C library."""
    return [sys.executable, "-m", "ziglang", "c++", "-target", f"{machine}-linux-{library}"]


def _build(compiler: Sequence[str], units: Mapping[str, Sequence[str]], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            objects = compile_units(compiler, units, FLAGS, Path(scratch))
            with whole_file(target) as draft:
                link(compiler, objects, FLAGS, draft)
    except OSError as error:
        raise BuildFailed(
            f"{target.parent} cannot be written ({error}); make it writable"
        ) from error


def _version(compiler: Sequence[str]) -> str:
    """Returns a text that changes with the compiler's release."""
    result = subprocess.run([*compiler, "--version"], capture_output=True, timeout=TIMEOUT_S)
    return hashlib.sha256(result.stdout).hexdigest()[:8]


def _modified_ns(built: Path) -> int:
    return built.stat().st_mtime_ns


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the kernels ahead of time.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--variants", action="store_true", help="all that this processor can run: for tests"
    )
    where.add_argument(
        "--beside", action="store_true", help="beside the sources, for every processor of this kind"
    )
    where.add_argument(
        "--release", type=Path, metavar="FOLDER", help="by zig, for every processor of every kind"
    )
    options = parser.parse_args()
    if options.release:
        libraries = release(options.release)
    elif options.beside:
        libraries = [SHIPPED / f"{library_stem(units())}.so"]
        _build(find_compiler(), units(), libraries[0])
    else:
        libraries = [compiled(units_of_tests() if options.variants else None)]
    for library in libraries:
        print(f"kernels: {library}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except BuildFailed as failure:
        sys.exit(f"The kernels cannot be built: {failure}.")
    except KeyboardInterrupt:
        sys.exit("The kernels were not built, because of Ctrl-C or SIGTERM.")
