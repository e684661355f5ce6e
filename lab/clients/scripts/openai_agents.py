"""openai-agents, on either API."""

import sys
from pathlib import Path

import agents


@agents.function_tool
def read_note(path: str) -> str:
    """Read a note."""
    return Path(path).read_text()


prompt, api = sys.argv[1:]
agents.set_tracing_disabled(True)
agents.set_default_openai_api(api)
agent = agents.Agent(name="reader", model="tiny", tools=[read_note])
print(agents.Runner.run_sync(agent, prompt).final_output)
