"""`python -m lab.kernels.sanitize`: all kernels as they are shipped, and under the compiler's
sanitizers.

Builds `src/test_driver.cpp` with the flags of a wheel, since `make test` optimises most variants
less; then with AddressSanitizer and UBSan, then with ThreadSanitizer, and runs it. Fails on any
report, on any wrong result, and when a sanitizer is not there.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from inference_api.kernels.build import (
    FLAGS,
    compile_units,
    find_compiler,
    link,
    units,
)
from inference_api.kernels.compilers import BuildFailed

AS_SHIPPED = ""
SANITIZERS = (AS_SHIPPED, "address,undefined", "thread")
TIMEOUT_S = 600


def main() -> int:
    failed = [sanitizer for sanitizer in SANITIZERS if not passes(sanitizer)]
    return 1 if failed else 0


def passes(sanitizer: str) -> bool:
    print(f"-fsanitize={sanitizer}" if sanitizer else "as shipped", flush=True)
    flags = [*FLAGS]
    if sanitizer:
        flags = [flag for flag in FLAGS if not flag.startswith("-O")]
        flags += ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    with tempfile.TemporaryDirectory() as scratch:
        driver = Path(scratch) / "test_driver"
        try:
            compiler = find_compiler()
            objects = compile_units(compiler, {**units(), "test_driver": ()}, flags, Path(scratch))
            link(compiler, objects, flags, driver, shared=False)
        except BuildFailed as failure:
            print(f"The test driver cannot be built: {failure}.")
            return False
        return subprocess.run([driver], timeout=TIMEOUT_S).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
