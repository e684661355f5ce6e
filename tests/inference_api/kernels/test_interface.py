"""The Python side of the C interface has the layout that the compiler gives it."""

import subprocess
from pathlib import Path

import pytest

from inference_api.kernels.build import SOURCES, find_compiler
from inference_api.kernels.interface import declarations, ffi
from lab.kit.servers import TIMEOUT_S

HEADER = (SOURCES / "interface.h").read_text()


def fields() -> dict[str, dict[str, int]]:
    """Offsets by struct and field, as Python has them."""
    structs = {name: ffi.typeof(name) for name in ffi.list_types()[0]}
    return {
        name: {field: ffi.offsetof(name, field) for field, _ in kind.fields}
        for name, kind in structs.items()
        if kind.kind == "struct" and kind.fields
    }


def faults(header: str, folder: Path) -> list[str]:
    """What the compiler says of a header where Python's layout is another."""
    checks = [
        f'static_assert(offsetof({struct}, {field}) == {offset}, "{struct}.{field}");'
        for struct, offsets in fields().items()
        for field, offset in offsets.items()
    ]
    checks += [f'static_assert(sizeof({s}) == {ffi.sizeof(s)}, "{s} ends");' for s in fields()]
    (folder / "interface.h").write_text(header)
    program = folder / "layout.cpp"
    program.write_text("\n".join(["#include <cstddef>", '#include "interface.h"', *checks, ""]))
    command = [*find_compiler(), "-std=c++17", "-fsyntax-only", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    return [line for line in done.stderr.splitlines() if "error:" in line]


def test_every_field_is_where_the_compiler_has_it(tmp_path: Path) -> None:
    assert set(fields()) >= {"HearthModel", "HearthLayer", "HearthBatch", "HearthDraw"}
    assert faults(HEADER, tmp_path) == []


def test_a_shifted_field_would_be_found(tmp_path: Path) -> None:
    shifted = HEADER.replace("  int64_t num_layers;", "  int64_t other;\n  int64_t num_layers;")
    found = faults(shifted, tmp_path)
    assert any(line.endswith("HearthModel.num_layers") for line in found)
    assert not any(line.endswith("HearthModel.head") for line in found)
    assert not any("HearthLayer" in line for line in found)


def test_no_declaration_is_lost_on_the_way_to_python() -> None:
    assert declarations().count("hearth_") == HEADER.count("hearth_")
    assert "HEARTH_EXPORT" not in declarations()


def test_a_field_that_the_header_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError, match="depth"):
        ffi.new("HearthModel *", {"depth": 2})
