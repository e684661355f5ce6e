"""`python -m lab.kernels.emulate`: the kernels of ARM's processors, on any machine.

Builds `src/test_driver.cpp` by zig and runs it under qemu as processors that have each variant.
Fails on any wrong result, and when one of them does not run its variant. Loads no torch.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from inference_api.kernels.build import FLAGS, MACHINES, compile_units, link, zig
from inference_api.kernels.compilers import BuildFailed

MACHINE = "aarch64"
EMULATOR = "qemu-aarch64-static"
PROCESSORS = {
    "portable": "cortex-a53",
    "neon": "cortex-a53",
    "dotprod": "neoverse-n1",
    "i8mm": "max",
}
TIMEOUT_S = 1800


def main() -> int:
    if shutil.which(EMULATOR) is None:
        sys.exit(f"There is no {EMULATOR}; on Debian: sudo apt-get install qemu-user-static")
    compiler = zig(MACHINE, "musl")  # links statically, so that qemu needs no libraries of ARM's
    with tempfile.TemporaryDirectory() as scratch:
        driver = Path(scratch) / "test_driver"
        units = {**MACHINES[MACHINE], "test_driver": ()}
        try:
            objects = compile_units(compiler, units, FLAGS, Path(scratch))
            link(compiler, objects, [*FLAGS, "-static", "-s"], driver, shared=False)
        except BuildFailed as failure:
            sys.exit(f"The test driver cannot be built: {failure}.")
        failed = [name for name, cpu in PROCESSORS.items() if not passes(driver, name, cpu)]
    return 1 if failed else 0


def passes(driver: Path, variant: str, processor: str) -> bool:
    command = [EMULATOR, "-cpu", processor, str(driver), variant]
    print(f"{variant} on {processor}", flush=True)
    return subprocess.run(command, timeout=TIMEOUT_S).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
