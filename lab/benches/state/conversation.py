"""Writes conversations of agents: one system prompt for all, then in each turn an answer with a
tool call, and the call's result. Pure."""

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

from lab.kit.servers import ROOT

Message = dict[str, Any]

ORDINARY_PROMPTS = ROOT / "lab" / "data" / "ordinary_prompts.txt"
WORDS = [word for word in ORDINARY_PROMPTS.read_text("utf-8").lower().split() if word.isalpha()]
TASK_WORDS = 16
FIRST_TOKENS = 200  # tool and task, before any turn
TURN_TOKENS = 56  # call and template of a turn, besides answer and result
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read_file", "description": "Returns what a file says.", "parameters": PATH}
TOOLS = [{"type": "function", "function": READ}]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of the parts of a conversation. Most of the words used are one token."""

    system: int
    result: int
    answer: int
    turns: int

    @property
    def context(self) -> int:
        """Returns the tokens of a whole conversation."""
        turn_tokens = TURN_TOKENS + self.result + self.answer
        return FIRST_TOKENS + self.system + self.turns * turn_tokens

    def within(self, context: int) -> Self:
        """Returns sizes that fit into a context, reduced in proportion if necessary."""
        fixed = replace(self, system=0, result=0, answer=0).context
        share = min(1.0, (context - fixed) / (self.context - fixed))
        system, result, answer = (int(share * n) for n in (self.system, self.result, self.answer))
        return replace(self, system=system, result=result, answer=answer)


def opening(agent: str, sizes: Sizes) -> list[Message]:
    """Returns the system prompt, which is the same for every agent, and this agent's task."""
    system = f"You are an agent. Your rules: {_words('rules', sizes.system)}"
    task = f"You are agent {agent}. Find out: {_words(agent, TASK_WORDS)}"
    return [{"role": "system", "content": system}, {"role": "user", "content": task}]


def turn(agent: str, number: int, answer: str, sizes: Sizes) -> list[Message]:
    """Returns an answer with its tool call, and the call's result."""
    call_id, path = f"call{number:05}", json.dumps({"path": f"{agent}/{number}.txt"})
    call = {"id": call_id, "type": "function", "function": {"name": "read_file", "arguments": path}}
    result = _words(f"{agent} {number}", sizes.result)
    return [
        {"role": "assistant", "content": answer, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


def _words(seed: str, count: int) -> str:
    return " ".join(Random(seed).choices(WORDS, k=count))
