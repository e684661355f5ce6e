"""docs/benchmarking.md lists every key, column and variable with the default the code has."""

import json
import re
from typing import Any

from pydantic import BaseModel

from benchmarking.rows.config import BenchmarkConfig
from benchmarking.rows.model_configs import Cells
from benchmarking.settings import Settings
from lab.kit.servers import ROOT

GUIDE = (ROOT / "docs" / "benchmarking.md").read_text()


def table_below(heading: str) -> dict[str, str]:
    """First column: second column, without their marks."""
    section = GUIDE.partition(heading)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)
    return {name: cell.strip().strip("`") for name, cell in rows}


def defaults(model: type[BaseModel]) -> dict[str, str]:
    return {name: shown(field.get_default()) for name, field in model.model_fields.items()}


def shown(value: Any) -> str:
    if value is None or not isinstance(value, str | bool | int | float | dict):
        return "" if value is None or repr(value) == "PydanticUndefined" else str(value)
    return value if isinstance(value, str) else json.dumps(value)


def test_every_key_of_the_config_is_documented() -> None:
    assert table_below("## config.yaml") == defaults(BenchmarkConfig)


def test_every_column_is_documented() -> None:
    assert table_below("## model_configs\n") == defaults(Cells)


def test_every_variable_is_documented() -> None:
    assert table_below("## Rows of a file\n") == {
        "BENCHMARK_API_BASE": Settings.model_fields["api_base"].default,
        "BENCHMARK_API_KEY": "",
    }
