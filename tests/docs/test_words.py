"""Comments of the product begin as sentences do, a public class has a name of its own, and
files and folders stay short."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lab.kit.servers import ROOT

PACKAGES = (
    "benchmarking",
    "cluster",
    "common",
    "inference_api",
    "optimizer",
    "proxy",
    "scripts",
    "weights",
)
MOST_LINES, MOST_FILES = 400, 22  # of a file, of a folder
NO_SENTENCE = re.compile(r"(of|that|those|by|whose|whoever)\b", re.IGNORECASE)
IN_COMMENT = re.compile(rf"#[# ]*{NO_SENTENCE.pattern}", re.IGNORECASE)

# One for each package on purpose: its settings, its refusal to start, its bodies.
SHARED = {"Settings", "Server", "StartupError", "Body"}
SHARED_NAMES = 53  # names of public classes in several modules: rename one, and lower this

parsed = cache(ast.parse)


def openings(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each docstring and of each comment, where it begins; of comments only
    where one may be no sentence: tokens take seconds."""
    last_line, lines = 0, io.StringIO(source if IN_COMMENT.search(source) else "")
    for token in tokenize.generate_tokens(lines.readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            is_own_line = token.line.lstrip().startswith("#")
            if not (is_own_line and line == last_line + 1):
                yield line, token.string.lstrip("# ")
            last_line = line if is_own_line else 0
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()


def public_classes() -> dict[str, set[Path]]:
    found = defaultdict(set)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(parsed(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].add(path.relative_to(ROOT))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_text_is_read_as_the_locale_has_it(package: str) -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / package).rglob("*.py")}
    assert [
        path for path, text in sources.items() if re.search(r"\.(read_text|open)\(\)", text)
    ] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_comments_begin_with_a_subject_or_a_verb(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in openings(path.read_text())
        if NO_SENTENCE.match(text)
    ]
    assert not found, "\n".join(["say what it is, or what it does:", *found])


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_and_a_folder_can_be_read_in_a_sitting(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in files}
    assert [path for path in files if lines[path] > MOST_LINES] == []
    folders = Counter(path.parent for path in files)
    assert [path for path, count in folders.items() if count > MOST_FILES] == []


def test_what_is_no_sentence_is_found() -> None:
    source = '''
LIMIT = 2  # of rows
# Of a block, which
# by itself is no opening.
def ours():
    """Those of a step."""
    # Returns
    return 1  # what holds
'''
    found = {line for line, text in openings(source) if NO_SENTENCE.match(text)}
    assert found == {2, 3, 6}


def test_ever_fewer_classes_share_a_name() -> None:
    classes = public_classes()
    shared = {name for name, paths in classes.items() if len(paths) > 1} - SHARED
    words = ", ".join(sorted(shared))
    assert len(shared) == SHARED_NAMES, f"names of several public classes: {words}"
