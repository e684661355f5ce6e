"""anthropic in Python: its runner of tools, streamed."""

import sys
from pathlib import Path

import anthropic


@anthropic.beta_tool
def read_note(path: str) -> str:
    """Read a note.

    Args:
        path: Where it lies.
    """
    return Path(path).read_text()


client = anthropic.Anthropic()
messages = [{"role": "user", "content": sys.argv[1]}]
runner = client.beta.messages.tool_runner(
    model="tiny", max_tokens=1024, tools=[read_note], messages=messages, stream=True
)
for stream in runner:
    message = stream.get_final_message()
print(message.content[0].text)
