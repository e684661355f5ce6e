"""CrewAI: a crew of one."""

import sys
from pathlib import Path

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("read_note")
def read_note(path: str) -> str:
    """Read a note."""
    return Path(path).read_text()


prompt, model, url = sys.argv[1:]
llm = LLM(model, base_url=url)
agent = Agent(role="reader", goal="read", backstory="", tools=[read_note], llm=llm)
task = Task(description=prompt, expected_output="what it says", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff())
