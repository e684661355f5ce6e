"""Commands in the README and in docs/ name what there is: modules, scripts, targets, options."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.benches.__main__ import MODULES as BENCHES
from scripts.hearth import COMMANDS

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
OURS = (
    "benchmarking",
    "cluster",
    "inference_api",
    "lab",
    "optimizer",
    "proxy",
    "scripts",
    "weights",
)

MODULE = re.compile(r"\bpython3? -m ([a-z0-9_.]+)")
SCRIPT = re.compile(r"(?<![\w/.])((?:scripts|proxy|deploy|lab)/[a-z_/]+\.(?:py|sh))")
HEARTH = re.compile(r"(?:^|[\s/`])hearth ([a-z]+)\b")
TARGET = re.compile(r"\bmake ([a-z][a-z-]*)(?![\w.…-])")
OPTION = re.compile(r"(?<=\s)(--[a-z][a-z-]+)")


def code_of(page: Path) -> Iterator[str]:
    """Lines of code blocks, and code within lines; lines that go on are joined."""
    text = page.read_text().replace("\\\n", " ")
    without_output = re.sub(r"^```(?!sh)\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    without_output = re.sub(r" +# .*$", "", without_output, flags=re.MULTILINE)  # said, not run
    for block in re.findall(
        r"^```sh(?: \w+)?\n(.*?)^```", without_output, re.DOTALL | re.MULTILINE
    ):
        yield from block.splitlines()
    yield from re.findall(r"^ {4}(?=\S)(.*)$", without_output, re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", without_output, flags=re.DOTALL | re.MULTILINE)
    yield from (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose))


LINES = [(page.name, line) for page in PAGES for line in code_of(page)]


def modules(line: str) -> list[str]:
    found = MODULE.findall(line)
    found += [COMMANDS[name].module for name in HEARTH.findall(line) if name in COMMANDS]
    return [name.rstrip(".") for name in found if name.partition(".")[0] in OURS]


@pytest.mark.parametrize(("page", "line"), [each for each in LINES if modules(each[1])])
def test_modules_and_their_options_are_there(page: str, line: str) -> None:
    ours = line.partition(" -- ")[0]
    for module in modules(ours):
        spec = find_spec(module)
        assert spec is not None, f"{page}: {line}"
        if len(modules(ours)) == 1:
            package = TOP / module.partition(".")[0]
            source = "".join(path.read_text() for path in package.rglob("*.py"))
            for option in OPTION.findall(ours.partition(module)[2] or ours):
                assert f'"{option}"' in source, f"{page}: {option} of {line}"


@pytest.mark.parametrize(("page", "line"), [each for each in LINES if SCRIPT.search(each[1])])
def test_scripts_are_there(page: str, line: str) -> None:
    for path in SCRIPT.findall(line):
        assert (TOP / path).is_file(), f"{page}: {line}"


@pytest.mark.parametrize(("page", "line"), [each for each in LINES if HEARTH.search(each[1])])
def test_commands_of_hearth_are_there(page: str, line: str) -> None:
    for name in HEARTH.findall(line):
        assert name in COMMANDS, f"{page}: {line}"


@pytest.mark.parametrize(("page", "line"), [each for each in LINES if TARGET.search(each[1])])
def test_targets_of_make_are_there(page: str, line: str) -> None:
    rules = set(re.findall(r"^([a-z][a-z-]*):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for name in TARGET.findall(line):
        is_bench = name.removeprefix("bench-").rstrip("-") in BENCHES or name == "bench-"
        assert name in rules or is_bench, f"{page}: {line}"
