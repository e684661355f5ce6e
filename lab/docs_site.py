"""A hook of mkdocs (`make docs`): the README is the first page, and files of the repository that
pages link to come along, below `files/`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP = Path(__file__).resolve().parent.parent
BESIDE = "files/"
INDEX = "index.md"
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")

MARK = re.compile(r"^(```\w+) [\w-]+$", re.MULTILINE)  # of a block, for a test: ```sh run


def on_files(files: Files, config: MkDocsConfig) -> Files:
    readme = File.generated(config, INDEX, content=(TOP / "README.md").read_text())
    targets: set[str] = set()
    for page in (*files.documentation_pages(), readme):
        targets |= {*_targets(page.content_string, page.src_uri)}
    files.append(readme)
    for target in sorted(targets):
        if _site_path(target).startswith(BESIDE) and (TOP / target).is_file():
            content = (TOP / target).read_bytes()
            files.append(File.generated(config, _site_path(target), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the repository become links between pages of the site. What the files
    that came along link to may not have come, and is then text."""
    here = page.file.src_uri

    def moved(link: "re.Match[str]") -> str:
        text, target, anchor = link[1], _site_path(_repository_path(link[2], here)), link[3] or ""
        if files.get_file_from_path(target) is None and here.startswith(BESIDE):
            return text
        return f"[{text}]({relpath(target, dirname(here) or '.')}{anchor})"

    return LINK.sub(moved, MARK.sub(r"\1", markdown))


def _targets(markdown: str, here: str) -> Iterator[str]:
    for link in LINK.finditer(markdown):
        yield _repository_path(link[2], here)


def _repository_path(target: str, here: str) -> str:
    """What a link on a page of the site means in the repository."""
    if here == INDEX:
        return normpath(target)
    of_page = here.removeprefix(BESIDE) if here.startswith(BESIDE) else f"docs/{here}"
    return normpath(join(dirname(of_page), target))


def _site_path(path: str) -> str:
    if path == "README.md":
        return INDEX
    return path.removeprefix("docs/") if path.startswith("docs/") else BESIDE + path
