"""Reads the Dockerfile: as much of its language as ours has."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Stage:
    name: str
    base: "Stage | str"  # a stage of ours, or an image of others
    steps: list[tuple[str, str]] = field(default_factory=list)  # an instruction and what follows

    def of(self, instruction: str) -> list[str]:
        """What follows each such instruction, of the stages that this one begins with too."""
        before = self.base.of(instruction) if isinstance(self.base, Stage) else []
        return before + [rest for found, rest in self.steps if found == instruction]

    @property
    def is_image(self) -> bool:
        """Others are stages of one."""
        return bool(self.of("CMD"))

    @property
    def command(self) -> list[str]:
        words = [json.loads(text[-1]) for text in (self.of("ENTRYPOINT"), self.of("CMD")) if text]
        return [word for each in words for word in each]

    @property
    def probe(self) -> list[str]:
        """The command of its HEALTHCHECK; empty where there is none."""
        _, _, command = self.of("HEALTHCHECK")[-1].partition("CMD ")
        found: list[str] = json.loads(command or "[]")
        return found

    @property
    def environment(self) -> dict[str, str]:
        found = {"PATH": PATH}
        for text in self.of("ENV"):
            for name, _, value in (word.partition("=") for word in shlex.split(text)):
                found[name] = value.replace(f"${name}", found.get(name, ""))
        return found


def read_stages(file: Path) -> Mapping[str, Stage]:
    """In their order. The last one, where it has no name, is called `default`."""
    stages: dict[str, Stage] = {}
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stage = None
    for instruction, _, rest in (line.partition(" ") for line in text.splitlines() if line):
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name or "default"] = Stage(name or "default", stages.get(base, base))
        elif stage is not None:
            stage.steps.append((instruction, " ".join(rest.split())))
    return stages
