"""`hearth plan`: what it prints, what it reads, and that its documentation shows what it says."""

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from lab.kit.servers import TIMEOUT_S
from optimizer.plan import main

DOCS = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
OPTIONS = ["--model", "qwen3-8b", "--rate", "2", "--accelerator", "h100"]
STEPS = {
    "decode_ms": [[0, 7.1, 0.1], [1, 7.0, 0.1], [32, 8.0, 0.1], [16, 8.2, 0.1]],
    "prefill_ms_per_token": [[0, 0.02, 0.001], [8, 0.02, 0.001]],
}


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


HEAVY = {"torch", "transformers", "matplotlib", "pandas", "flask", "gunicorn", "requests", "redis"}
COUNT_IMPORTS = """
import json, sys
from optimizer.plan import main
try:
    main(sys.argv[1:])
except SystemExit:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [(["--help"], HEAVY | {"scipy.optimize", "scipy.special"}), (OPTIONS, HEAVY | {"scipy.stats"})],
)
def test_nothing_heavy_is_imported_that_the_answer_does_not_need(
    arguments: list[str], heavy: set[str]
) -> None:
    command = [sys.executable, "-c", COUNT_IMPORTS, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert heavy.isdisjoint(json.loads(result.stderr))


def block(name: str) -> str:
    found = re.search(rf"```{name}\n(.*?)```", DOCS, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_command_answers_as_documented() -> None:
    command = re.search(r"## An answer\n\n    hearth plan (.*)\n", DOCS)
    assert command is not None
    assert ran(*shlex.split(command[1])).stdout == block("text answer")


def test_documented_prices_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(block("yaml prices"))
    result = ran(*OPTIONS, "--prices", str(path), "--json")
    (choice,) = json.loads(result.stdout)["choices"]
    assert choice["costPerCard"] == 210


def test_every_option_is_documented() -> None:
    for option in main.params:
        assert f"`{option.opts[0]}" in DOCS or f"`, `{option.opts[0]}`" in DOCS


def test_step_costs_of_a_server_replace_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"some-model": STEPS}))
    result = ran(*OPTIONS, "--perf", str(path))
    assert result.exit_code == 0
    assert "measured ±" in result.stdout
    assert "32 x 0.113 GB" in result.stdout  # no more rows than were measured
    assert "your measurement, in place of the catalogue's" in result.stdout


def test_a_fit_replaces_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    parms = {"decodeParms": {"alpha": 5.0, "beta": 0.1}, "prefillParms": {"delta": 0.01}}
    path.write_text(json.dumps({"models": [{"name": "qwen3-8b", "acc": "h100", **parms}]}))
    result = ran(*OPTIONS, "--perf", str(path))
    assert "measured ±0%" in result.stdout
    assert "Measured data without errors has no interval" in result.stdout


def test_levels_that_nothing_meets_end_with_a_status_and_the_nearest() -> None:
    result = ran(*OPTIONS, "--itl", "0.1")
    assert result.exit_code == 1
    assert re.search(r"The nearest, 8xh100, does TTFT [\d.]+ ms and ITL [\d.]+ ms", result.stdout)


@pytest.mark.parametrize(
    ("content", "option", "told"),
    [
        ("[1, 2]", "--prices", "give dollars per card and hour"),
        ("h100: .nan", "--prices", "finite number"),
        ("h100: 1" + "0" * 400, "--prices", "too large"),
        ("h100: -1", "--prices", "prices.h100: is -100; give 0 or more"),
        ("{h100: [", "--prices", "line 1, column 9"),
        ("h100: 1\nh100: 2", "--prices", "appears twice"),
        ("a: &a [1]\nb: [*a, *a]", "--prices", "anchors and aliases"),
        ("# " + "x" * 2**20, "--prices", "more than 1048576 bytes; shorten it"),
        ("{}", "--perf", "neither `models`"),
        ('{"decode_ms": [[1]], "prefill_ms_per_token": []}', "--perf", "lists of [rows, ms"),
        ('{"decode_ms": [], "prefill_ms_per_token": []}', "--perf", "has 0 entries; give 1"),
        ('{"models": [{"name": "hearth-tiny", "acc": "h100"}]}', "--perf", "measured[0].name"),
        ('{"models": [], "models": []}', "--perf", "'models' appears twice; remove one"),
        ("[" * 100_000, "--perf", ".json: "),
    ],
)
def test_files_that_cannot_be_used_are_told_with_their_fault(
    tmp_path: Path, content: str, option: str, told: str
) -> None:
    path = tmp_path / ("f.yaml" if option == "--prices" else "f.json")
    path.write_text(content)
    result = ran(*OPTIONS, option, str(path))
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert told in result.stderr


NUMBERS = st.sampled_from([0, 1, -1, 2.5, 1e308, math.nan, math.inf, 10**400, True])
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | NUMBERS | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["h100", "models", "decode_ms", "prefill_ms_per_token", "name", "acc"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(ODD, st.sampled_from(["--prices", "--perf"]), st.sampled_from(["json", "yaml"]))
def test_whatever_a_file_of_prices_or_measurements_holds_is_read_or_refused(
    value: Any, option: str, kind: str
) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / f"f.{kind}"
        path.write_bytes(json.dumps(value).encode(errors="surrogatepass"))
        result = ran(*OPTIONS, "--itl", "60", option, str(path))
        assert result.exit_code in (0, 1)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert len(result.stderr) < 4000


def test_step_costs_need_to_be_of_one_accelerator(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps(STEPS))
    result = ran("--model", "qwen3-8b", "--rate", "2", "--perf", str(path))
    assert "name it with one --accelerator" in result.stderr
