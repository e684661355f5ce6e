"""LangChain's OpenAI model in LangGraph's agent, on either API."""

import sys
from pathlib import Path

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def read_note(path: str) -> str:
    """Read a note."""
    return Path(path).read_text()


prompt, api = sys.argv[1:]
model = ChatOpenAI(model="tiny", use_responses_api=api == "responses", streaming=True)
asked = {"messages": [("user", prompt)]}
print(create_react_agent(model, [read_note]).invoke(asked)["messages"][-1].content)
