"""Pydantic AI, on any API."""

import sys
from pathlib import Path

from pydantic_ai import Agent

prompt, model = sys.argv[1:]
agent = Agent(model)


@agent.tool_plain
def read_note(path: str) -> str:
    """Read a note."""
    return Path(path).read_text()


print(agent.run_sync(prompt).output)
