"""Each part imports with what its own install brings: the proxy with requirements-core.txt, the API
with the extra `serve`, and so on. What else is here cannot be imported meanwhile.
"""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain, combinations
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lab.kit.servers import TIMEOUT_S
from scripts.hearth import COMMANDS, PROOFS

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
METADATA = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["requirements_txt"]
EXTRAS: dict[str, list[str]] = METADATA["optional-dependencies"]

# Packages of ours, whole but for what is named after them, by the files that they need
# beside requirements-core.txt.
PARTS = {
    "": (
        "common -common.numerics -common.gguf_header "
        "proxy scripts.agent scripts.hearth scripts.init scripts.jwt_util"
    ),
    "requirements-serve.txt": (
        "inference_api -inference_api.engine.cuda scripts.serve scripts.bundle "
        "scripts.fetch_smollm2"
    ),
    "requirements-serve.txt requirements-train.txt": "scripts.medusa scripts.convert_heads",
    "requirements-plan.txt": "optimizer weights",
    "requirements-bench.txt": "benchmarking",
    "requirements-cluster.txt": "cluster",
}
# What all parts have is imported once: each of the others is in a process forked from that.
IMPORT_ALL = """
import importlib, json, os, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is not installed with {files}")

def import_all(wanted):
    left_out = tuple(name[1:] for name in wanted if name.startswith("-"))
    for name in wanted:
        if not name.startswith("-"):
            package = importlib.import_module(name)
            for each in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
                is_program = each.name.endswith(("__main__", "gunicorn.conf"))
                if not is_program and not each.name.startswith(left_out or "-"):
                    importlib.import_module(each.name)

sys.meta_path.insert(0, Refuse())
(files, refused, wanted), *others = json.load(sys.stdin)
import_all(wanted)
for files, refused, wanted in others:
    if not (child := os.fork()):
        import_all(wanted)
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"fault: {files}")
"""


def listed(file: str) -> list[Requirement]:
    lines = (TOP / file).read_text().splitlines()
    return [Requirement(line) for line in lines if line[:1].isalnum()]


def with_dependencies(requirements: list[Requirement]) -> set[str]:
    """The names of the distributions that pip would install."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if name in found or not (each.marker is None or each.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            waiting += [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
    return found


distributions_of_modules = cache(packages_distributions)  # reads the metadata of all that is here


@pytest.mark.slow
def test_each_part_imports_with_what_its_install_brings() -> None:
    parts = [(files, [*refused_beside(files)], names.split()) for files, names in PARTS.items()]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=TOP,
        input=json.dumps(parts),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def refused_beside(files: str) -> set[str]:
    """The modules of what is here but does not come with that part."""
    read = ["requirements-core.txt", *files.split()]
    brought = with_dependencies([each for file in read for each in listed(file)])
    refused = {
        module
        for module, distributions in distributions_of_modules().items()
        if not brought & {canonicalize_name(name) for name in distributions}
    }
    assert ({"torch", "transformers"} <= refused) == ("requirements-train.txt" not in read)
    return refused - {"common", "inference_api", "scripts", *PARTS[files].split()}


def test_everything_is_what_the_parts_need() -> None:
    parts = {*METADATA["files"], *chain.from_iterable(EXTRAS.values()), "requirements-test.txt"}
    lines = (TOP / "requirements.txt").read_text().splitlines()
    assert {line.removeprefix("-r ") for line in lines if line.startswith("-r ")} == parts


def test_a_package_has_one_version() -> None:
    pinned: dict[str, set[str]] = {}
    for path in TOP.glob("requirements*.txt"):
        for each in listed(path.name):
            pinned.setdefault(each.name, set()).add(str(each.specifier))
    assert {name: versions for name, versions in pinned.items() if len(versions) > 1} == {}


def test_commands_know_the_extra_that_they_need() -> None:
    """What they look for is there together only with all of it, whatever else is installed."""
    own = {name: {canonicalize_name(each.name) for file in files for each in listed(file)}
           for name, files in EXTRAS.items()}  # fmt: skip
    brought = [with_dependencies(listed(file)) for files in EXTRAS.values() for file in files]
    core = with_dependencies(listed("requirements-core.txt"))
    assert {each.extra for each in COMMANDS.values()} == {None, *PROOFS}
    for extra, proofs in PROOFS.items():
        needed = set[str]().union(*(own[name] for name in extra.split(",")))
        assert needed >= {*proofs}
        for others in chain.from_iterable(combinations(brought, n) for n in range(len(brought))):
            here = core.union(*others)
            assert not here >= {*proofs} or here >= needed, f"{extra}: {needed - here}"


def made(target: str, **variables: str) -> str:
    """What `make` would do for it."""
    command = ["make", "--dry-run", "--always-make", *map("=".join, variables.items()), target]
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=TOP, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


@pytest.mark.parametrize(("nvidia", "extras"), [("", "serve"), ("/dev/dxg", "serve,cuda")])
def test_make_serve_installs_torch_only_where_there_is_a_driver(nvidia: str, extras: str) -> None:
    told = made(".venv/serve.stamp", NVIDIA=nvidia)
    assert f"'.[{extras}]'" in told
    assert "torch" not in told


@pytest.mark.parametrize(("nvidia", "is_asked"), [("", True), ("/dev/dxg", False)])
def test_make_test_takes_the_build_for_cpus_where_there_is_no_driver(
    nvidia: str, is_asked: bool
) -> None:
    address = "https://mirror.example.org/cpu"
    told = made(".venv/dev.stamp", NVIDIA=nvidia, TORCH_INDEX=address)
    assert re.findall(r"--extra-index-url '(.+)'", told) == [address] * is_asked
