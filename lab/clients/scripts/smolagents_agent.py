"""smolagents: an agent that calls tools."""

import sys
from pathlib import Path

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def read_note(path: str) -> str:
    """Read a note.

    Args:
        path: Where it lies.
    """
    return Path(path).read_text()


agent = ToolCallingAgent([read_note], OpenAIModel("tiny"), max_steps=4)
answer = agent.run(sys.argv[1])
assert answer == "Done.", answer
