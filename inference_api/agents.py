"""The agents that `hearth agent` knows, and how to set them up. Pure functions."""

import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template

RECORDS = Path(__file__).with_name("agents.toml")
MAX_OUTPUT_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent. `text` is a Markdown template; agents.toml explains its fields."""

    title: str
    route: str
    text: str
    first_prompt_tokens: int = 0  # 0 if not counted yet

    def filled_in(self, url: str, model: str, context_tokens: int) -> str:
        """Returns the text for one model of a server. Values are quoted as in JSON."""
        return Template(self.text).substitute(
            url=url,
            model=json.dumps(model, ensure_ascii=False)[1:-1],
            shell_model=shlex.quote(model),
            context=context_tokens,
            output=min(MAX_OUTPUT_TOKENS, context_tokens // 4),
        )


@cache
def agents() -> Mapping[str, Agent]:
    """Returns the agents, by the name that `hearth agent` takes."""
    records = tomllib.loads(RECORDS.read_text(encoding="utf-8"))
    return {name: Agent(**each) for name, each in records.items()}


def table() -> str:
    """Returns a Markdown table of the agents."""
    rows = [("program", "uses", "what to type"), ("---",) * 3]
    rows += [
        (each.title, f"`{each.route}`", f"`hearth agent {name}`") for name, each in agents().items()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
