"""docs/comparison.md counts the steps that it lists."""

import re

from tests.followed_pages import DOCS

PAGE = (DOCS / "comparison.md").read_text()
LAST = "What was not verified"


def counts() -> dict[str, list[int]]:
    """Of the table: by project, the numbers in its row."""
    rows = re.findall(r"^\| ([\w-]+) \|(.+)\|$", PAGE, re.MULTILINE)
    return {name: [int(each) for each in re.findall(r"\d+", cells)] for name, cells in rows}


def listed() -> dict[str, list[int]]:
    """By project, the length of each list in its section."""
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return {
        name: [len(one.splitlines()) for one in re.findall(r"(?:^\d+\. .*\n)+", text, re.MULTILINE)]
        for name, text in sections
        if name != LAST
    }


def test_the_table_counts_the_steps_below_it() -> None:
    assert len(counts()) == 6
    assert counts() == listed()
