"""What a wheel is for: with HEARTH_KERNELS, a library of the kernels, for its kind of processor.

`make wheels` builds one for each kind. Without HEARTH_KERNELS a wheel has no library, fits every
machine, and compiles the kernels where it serves.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = "inference_api/kernels/built"  # SHIPPED in inference_api/kernels/build.py


class ShippedKernels(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        given = os.environ.get("HEARTH_KERNELS")
        if given is None:
            return
        library = Path(given)
        machine = library.stem.rpartition("-")[2]
        build_data["tag"] = f"py3-none-manylinux2014_{machine}"
        build_data["pure_python"] = False
        build_data["force_include"][str(library.resolve())] = f"{BUILT}/{library.name}"
