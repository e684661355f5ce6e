"""Pages of docs/ as somebody follows them: blocks of commands, run as they stand.

```sh run      is run to its end, and has to succeed
```sh serve    goes on running
```python run  is a program
```text output is what the block before it prints
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.kit.servers import ROOT, TIMEOUT_S, environment

DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w+) (run|serve|output)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    mark: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def served_by(page: Path) -> list[str]:
    """The words of the page's command that goes on running, for `env`; of the first of several."""
    return ["env", *next(block.text.split() for block in blocks(page) if block.mark == "serve")]


@dataclass(frozen=True, slots=True)
class Reader:
    """Runs blocks in a directory of its own. Tests beside each other cannot all have the ports that
    a page names: `addresses` has what stands for each."""

    folder: Path
    addresses: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """In which `hearth` is this clone's."""
        own = environment()
        commands = f"{Path(sys.executable).parent}:{own['PATH']}"
        return own | {"PATH": commands, "PYTHONPATH": str(ROOT)}

    def run(self, block: Block) -> str:
        """What a block prints. Fails where it does."""
        text = block.text
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        program = ["bash", "-euc"] if block.language == "sh" else [sys.executable, "-c"]
        finished = subprocess.run(
            [*program, text],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert finished.returncode == 0, f"{text}\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout

    def follow(self, page: Path) -> Iterator[str]:
        """What each of the page's blocks prints, one after the other; it has to be what the page
        says."""
        printed = ""
        for block in blocks(page):
            if block.mark == "output":
                assert printed == block.text
            elif block.mark == "run":
                printed = self.run(block)
                yield printed
