"""What a wheel has besides its packages: files of the top folder, and with HEARTH_KERNELS a library
of the kernels, for its kind of processor.

`make wheels` builds one for each kind. Without HEARTH_KERNELS a wheel has no library, fits every
machine, and compiles the kernels where it serves. An editable install has neither: it finds the
files in the clone, and packing them took most of an install.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = "inference_api/kernels/built"  # SHIPPED in inference_api/kernels/build.py
PACKED = "inference_api/shipped"  # inference_api/shipped_files.py finds them here and there
FILES = (
    "gunicorn.conf.py",
    "models/bundle.yaml",
    "models/experts",
    "models/hearth-tiny",
    "models/smollm2-135m-instruct-medusa",
)


class ShippedFiles(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        build_data["force_include"] |= {file: f"{PACKED}/{file}" for file in FILES}
        given = os.environ.get("HEARTH_KERNELS")
        if given is None:
            return
        library = Path(given)
        machine = library.stem.rpartition("-")[2]
        build_data["tag"] = f"py3-none-manylinux2014_{machine}"
        build_data["pure_python"] = False
        build_data["force_include"][str(library.resolve())] = f"{BUILT}/{library.name}"
