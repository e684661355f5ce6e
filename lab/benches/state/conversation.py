"""Conversations of agents: one system prompt for all, then turn by turn an answer with a call of a
tool, and its result. Pure."""

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

from lab.kit.servers import ROOT

Message = dict[str, Any]

ORDINARY_PROMPTS = ROOT / "lab" / "data" / "ordinary_prompts.txt"
WORDS = [word for word in ORDINARY_PROMPTS.read_text("utf-8").lower().split() if word.isalpha()]
TASK_WORDS = 16
FIRST_TOKENS = 200  # before any turn: the tool and a task
TURN_TOKENS = 56  # of a turn, beside answer and result: a call, and what a template writes
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read_file", "description": "Returns what a file says.", "parameters": PATH}
TOOLS = [{"type": "function", "function": READ}]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of the parts of a conversation: most words that are written for it are one."""

    system: int
    result: int
    answer: int
    turns: int

    @property
    def context(self) -> int:
        """Tokens of a whole conversation."""
        turn_tokens = TURN_TOKENS + self.result + self.answer
        return FIRST_TOKENS + self.system + self.turns * turn_tokens

    def within(self, context: int) -> Self:
        """Returns sizes that fit into a context: these, or all of them smaller alike."""
        fixed = replace(self, system=0, result=0, answer=0).context
        share = min(1.0, (context - fixed) / (self.context - fixed))
        system, result, answer = (int(share * n) for n in (self.system, self.result, self.answer))
        return replace(self, system=system, result=result, answer=answer)


def opening(agent: str, sizes: Sizes) -> list[Message]:
    """Returns the system prompt, the same for every agent, and what this one is asked."""
    system = f"You are an agent. Your rules: {_words('rules', sizes.system)}"
    task = f"You are agent {agent}. Find out: {_words(agent, TASK_WORDS)}"
    return [{"role": "system", "content": system}, {"role": "user", "content": task}]


def turn(agent: str, number: int, answer: str, sizes: Sizes) -> list[Message]:
    """Returns an answer with the call that goes with it, and the call's result."""
    call_id, path = f"call{number:05}", json.dumps({"path": f"{agent}/{number}.txt"})
    call = {"id": call_id, "type": "function", "function": {"name": "read_file", "arguments": path}}
    result = _words(f"{agent} {number}", sizes.result)
    return [
        {"role": "assistant", "content": answer, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


def _words(seed: str, count: int) -> str:
    return " ".join(Random(seed).choices(WORDS, k=count))
