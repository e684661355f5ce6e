"""`make wheels`: what must be true of the wheels in a folder, and what they are.

Each fits the old systems that its name promises, as auditwheel sees it. Units that every processor
runs have no instructions that only some have, and a unit of a variant brings no function that the
linker could prefer to the one of another unit. tests/e2e/test_wheel.py installs a wheel and
serves with it.
"""

import re
import subprocess
import sys
from pathlib import Path

from inference_api.kernels.build import MACHINES, variant_of

MB = 1e6
# Of AVX and later: their registers, and that mnemonics begin with a v.
AVX = re.compile(r"%[yz]mm|%k[0-7]\b|%tmm|\tv[a-z]")
FITS = re.compile(r'is consistent with the following platform tag: "manylinux_2_(\d+)_')
MANYLINUX2014 = 17  # minor version of its glibc


def main() -> int:
    [folder] = map(Path, sys.argv[1:])
    faults: list[str] = []
    for machine in MACHINES:
        objects = sorted((folder / machine).glob("*.o"))
        if machine == "x86_64":
            faults += [f"{each} has AVX" for each in objects if is_shared(each) and has_avx(each)]
        faults += [
            f"{each}: the linker may keep its {name} for all units"
            for each in objects
            if not is_shared(each)
            for name in offered_functions(each)
        ]
    print("| wheel | MB |\n|---|---|")
    for wheel in sorted(folder.glob("*.whl")):
        report = output(sys.executable, "-m", "auditwheel", "show", wheel)
        faults += [] if fits_manylinux2014(report) else [report]
        print(f"| {wheel.name} | {wheel.stat().st_size / MB:.1f} |")
    print("\n".join(faults))
    return 1 if faults else 0


def is_shared(unit: Path) -> bool:
    return variant_of(unit.stem) in (None, "portable")


def has_avx(unit: Path) -> bool:
    return AVX.search(output("objdump", "--disassemble", "--no-show-raw-insn", unit)) is not None


def offered_functions(unit: Path) -> list[str]:
    """The functions of an object file that other units could be linked to."""
    lines = output("nm", "--demangle", "--defined-only", "--extern-only", unit).splitlines()
    symbols = [line.split(maxsplit=2)[1:] for line in lines]
    return [name for kind, name in symbols if kind in "TWVu"]


def fits_manylinux2014(report: str) -> bool:
    found = FITS.search(" ".join(report.split()))
    return found is not None and int(found[1]) <= MANYLINUX2014


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


if __name__ == "__main__":
    sys.exit(main())
