"""smolagents: an agent that calls tools."""

import os
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


url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
agent = ToolCallingAgent([read_note], OpenAIModel("tiny", url, api_key=key), max_steps=4)
answer = agent.run(sys.argv[1])
assert answer == "Done.", answer
