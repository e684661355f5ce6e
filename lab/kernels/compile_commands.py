"""`python -m lab.kernels.compile_commands`: how each unit is compiled, for clang's tools.

Writes `var/kernels/compile_commands.json`, which clang-tidy and editors read.
"""

import json

from common.files import write_whole
from inference_api.kernels.build import COMPILED, FLAGS, SOURCES, units


def main() -> None:
    commands = [
        {
            "directory": str(SOURCES),
            "file": str(SOURCES / f"{unit}.cpp"),
            "arguments": ["c++", *FLAGS, *extra, "-c", str(SOURCES / f"{unit}.cpp")],
        }
        for unit, extra in {**units(), "test_driver": ()}.items()
    ]
    COMPILED.mkdir(parents=True, exist_ok=True)
    write_whole(COMPILED / "compile_commands.json", json.dumps(commands, indent=1))


if __name__ == "__main__":
    main()
