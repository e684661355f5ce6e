"""Measures agents that call tools over one long system prompt, in little memory:
`make bench-agents`.

In every turn an agent sends its whole conversation: the system prompt, which all share, a task, and
all answers, calls and results so far. One server of Hearth has a KV cache for a third of all
conversations, another for all of them. llama.cpp's server gets the same memory, and 8 GiB more for
prompts. All servers get the same requests, except that conversations have the server's own answers,
which are greedy and have equally many tokens. All agents send a turn to one server, then to the
next: at once or, in every other turn, one by one. At the end one more agent has each server for
itself, so that its conversation stays in the cache. A third server of Hearth has little memory and
keeps prefixes on a disk. It is restarted at the end, and all agents send one more turn, one by one.

Goals: less than 5 % of later prompts is computed. TTFT of turns one by one is at most 1.3 times
that of the agent alone. After the restart it is at most 1.3 times that of the last turn one by one.

If the model's context is too short, all sizes shrink in proportion. Nothing else may use the cores.
"""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from operator import eq
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from benchmarking.machine import describe_machine
from inference_api.loading.checkpoint import load_config
from lab.benches.state.conversation import TOOLS, Message, Sizes, opening, turn
from lab.benches.state.memory import QUANTIZATION, cache_for
from lab.kit.completions import NotAnswered, streamed
from lab.kit.servers import TIMEOUT_S, ServedApi, exit_on_sigterm, served
from lab.peers.install import LLAMA_CPP, NotInstalled, install
from lab.peers.llama_server import llama_server
from scripts.fetch_smollm2 import fetch_smollm2

START_TIMEOUT_S = 600.0
SHARES = {"a third": 3, "all": 1}  # divisors of the memory of all conversations
DISK = "a third and a disk"
LLAMA_OPTIONS = ("--kv-unified", "--cache-prompt", "--cache-ram", "8192", "--cache-reuse", "32")
FIRST, LATER = slice(0, 1), slice(1, None)
AT_ONCE, ONE_BY_ONE = slice(2, None, 2), slice(1, None, 2)  # later turns
COLUMNS = (
    "| memory for | answered | computed of later prompts | TTFT p50 / p95 ms, first turn "
    "| later, at once | later, one by one | alone | one by one ÷ alone | same texts "
    "| computed after a restart | TTFT p50 / p95 ms | ÷ the turn before |"
)


@dataclass(frozen=True, slots=True)
class Reply:
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    text: str


class Agent:
    """A conversation with one server. One thread at a time."""

    def __init__(self, name: str, sizes: Sizes) -> None:
        self.replies: list[Reply | None] = []  # None for a request that was not answered
        self._name, self._sizes = name, sizes
        self._messages = opening(name, sizes)

    def send(self, port: int) -> None:
        """Send the next turn."""
        number, reply = len(self.replies), None
        try:
            reply = ask(port, self._messages, self._sizes.answer)
        except (NotAnswered, OSError, HTTPException) as error:
            print(f"agent {self._name}, turn {number + 1}: {error}"[:200], flush=True)
        self._messages += turn(self._name, number, reply.text if reply else "", self._sizes)
        self.replies.append(reply)


@dataclass(slots=True)
class Server:
    name: str
    port: int
    agents: Sequence[Agent]
    lone: Agent
    after_restart: Sequence[Reply] = ()

    def go_on(self, port: int) -> None:
        """After a restart of the server, send one more turn of each agent."""
        for agent in self.agents:
            agent.send(port)
        self.after_restart = [reply for agent in self.agents if (reply := agent.replies.pop())]

    def replies(self, turns: slice) -> list[Reply]:
        """Returns the replies to all agents but the lone one."""
        return [reply for agent in self.agents for reply in agent.replies[turns] if reply]

    @property
    def last(self) -> list[Reply]:
        """Returns the replies to the last turn that came one by one."""
        each = (agent.replies[ONE_BY_ONE][-1:] for agent in self.agents)
        return [reply for replies in each for reply in replies if reply]

    @property
    def texts(self) -> list[str | None]:
        return [reply.text if reply else None for a in self.agents for reply in a.replies]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; default: SmolLM2")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--system-tokens", type=int, default=12_000)
    parser.add_argument("--result-tokens", type=int, default=64)
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument(
        "--llama", nargs="*", choices=SHARES, default=list(SHARES), help="memory of llama.cpp"
    )
    arguments = parser.parse_args()
    exit_on_sigterm()
    model = arguments.model or fetch_smollm2()
    turns = arguments.turns + 1  # one after a restart
    wanted = Sizes(arguments.system_tokens, arguments.result_tokens, arguments.answer_tokens, turns)
    sizes = wanted.within(load_config(model).max_positions)
    print(f"{describe_machine('gunicorn')}\n\n{model.name}, {arguments.agents} agents, {sizes}\n")
    with TemporaryDirectory() as logs, ExitStack() as stack:
        tokens = arguments.agents * sizes.context
        ports = _hearth(stack, model, arguments.agents, tokens, Path(logs))
        start = _with_disk(model, arguments.agents, tokens, Path(logs))
        with_disk = stack.enter_context(start())
        ports[f"hearth, {DISK}"] = with_disk.port
        ports |= _llama(stack, model, arguments.agents, tokens, arguments.llama)
        servers = []
        for name, port in ports.items():
            agents = [Agent(f"{number}", sizes) for number in range(arguments.agents)]
            servers.append(Server(name, port, agents, Agent("alone", sizes)))
        play(servers, arguments.turns)
        with_disk.process.terminate()
        with_disk.process.wait(TIMEOUT_S)
        servers[len(SHARES)].go_on(stack.enter_context(start()).port)
    print(f"{turns_table(servers, arguments.turns)}\n\n{servers_table(servers)}")


def play(servers: Sequence[Server], turns: int) -> None:
    begun_s = perf_counter()
    for number in range(turns):
        for server in servers:
            with ThreadPoolExecutor(1 if number % 2 else len(server.agents)) as pool:
                list(pool.map(partial(Agent.send, port=server.port), server.agents))
        print(f"turn {number + 1} of {turns} at {perf_counter() - begun_s:.0f} s", flush=True)
    for server in servers:
        for _ in range(turns):
            server.lone.send(server.port)


def ask(port: int, messages: Sequence[Message], max_tokens: int) -> Reply:
    """Sends a chat. Raises NotAnswered, also if the answer is too short."""
    body = {"messages": messages, "tools": TOOLS, "temperature": 0}
    length = {"max_tokens": max_tokens, "ignore_eos": True}
    stream = streamed(port, "/v1/chat/completions", body | length)
    events: list[dict[str, Any]] = [{}, *stream.events]
    usage = events[-1].get("usage", {})
    if usage.get("completion_tokens") != max_tokens:
        raise NotAnswered(f"its answer ends with {events[-1]}")
    deltas = [choice["delta"] for event in events[1:] for choice in event["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    return Reply(usage["prompt_tokens"], cached_tokens, stream.ttft_s, text)


def turns_table(servers: Sequence[Server], turns: int) -> str:
    """Returns a table of the prompt tokens that each server computed in each turn."""
    names = " | ".join(f"{server.name}: computed" for server in servers)
    lines = [f"| turn | sent | prompt tokens | {names} |", "|---" * (3 + len(servers)) + "|"]
    for number in range(turns):
        replies = [server.replies(slice(number, number + 1)) for server in servers]
        sent = "one by one" if number % 2 else "at once"
        prompt_tokens = sum(reply.prompt_tokens for reply in replies[0])
        computed = " | ".join(map(_computed, replies))
        lines.append(f"| {number + 1} | {sent} | {prompt_tokens} | {computed} |")
    return "\n".join(lines)


def servers_table(servers: Sequence[Server]) -> str:
    """Returns a table of all servers. The second one is Hearth with enough memory."""
    lines = [COLUMNS, "|---" * (COLUMNS.count("|") - 1) + "|"]
    enough = servers[1]
    for server in servers:
        is_compared = server.name.startswith("hearth") and server is not enough
        last_s, after = _p50_s(server.last), server.after_restart
        same = f"{sum(map(eq, server.texts, enough.texts))} of {len(enough.texts)}"
        lone = [reply for reply in server.lone.replies[ONE_BY_ONE] if reply]
        cells = [
            server.name,
            f"{len(server.replies(slice(None)))} of {len(server.texts)}",
            _computed(server.replies(LATER)),
            *(_ttft(server.replies(turns)) for turns in (FIRST, AT_ONCE, ONE_BY_ONE)),
            _ttft(lone),
            f"{_p50_s(server.replies(ONE_BY_ONE)) / _p50_s(lone):.2f}",
            same if is_compared else "",
            _computed(after) if after else "",
            _ttft(after),
            f"{_p50_s(after) / last_s:.2f}" if after else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _computed(replies: Sequence[Reply]) -> str:
    prompt_tokens = sum(reply.prompt_tokens for reply in replies)
    tokens = prompt_tokens - sum(reply.cached_tokens for reply in replies)
    return f"{tokens} ({tokens / max(prompt_tokens, 1):.1%})"


def _ttft(replies: Sequence[Reply]) -> str:
    if not replies:
        return ""
    p95_s = np.percentile([reply.ttft_s for reply in replies], 95)
    return f"{1000 * _p50_s(replies):.0f} / {1000 * p95_s:.0f}"


def _p50_s(replies: Sequence[Reply]) -> float:
    return float(np.median([reply.ttft_s for reply in replies] or [np.nan]))


def _hearth(
    stack: ExitStack, model: Path, num_agents: int, tokens: int, logs: Path
) -> dict[str, int]:
    """Starts our servers with `SHARES` of the memory for `tokens`. Returns ports by name."""
    ports = {}
    settings = _settings(model, num_agents, tokens)
    for name, share in SHARES.items():
        cache = cache_for(model, tokens // share)
        server = served(logs / name, start_timeout_s=START_TIMEOUT_S, **settings, **cache)
        ports[f"hearth, {name}"] = stack.enter_context(server).port
    return ports


def _with_disk(
    model: Path, num_agents: int, tokens: int, folder: Path
) -> Callable[[], AbstractContextManager[ServedApi]]:
    """Returns a function that starts a server with little memory and always the same disk."""
    return partial(
        served,
        folder / "disk.log",
        start_timeout_s=START_TIMEOUT_S,
        PREFIX_CACHE_DIR=folder / "pages",
        **_settings(model, num_agents, tokens),
        **cache_for(model, tokens // SHARES["a third"]),
    )


def _settings(model: Path, num_agents: int, tokens: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"MODEL": model, "MODEL_NAME": "model", "USER_ROWS": num_agents}
    return settings | {"QUANTIZATION": QUANTIZATION, "MAX_SEQ_LEN": tokens // num_agents}


def _llama(
    stack: ExitStack, model: Path, num_agents: int, tokens: int, names: Sequence[str]
) -> dict[str, int]:
    ports = {}
    try:
        if names:
            print(f"llama.cpp: {install(LLAMA_CPP)}\n", flush=True)
        for name in names:
            context = tokens // SHARES[name] // num_agents
            server = llama_server(model, num_agents, context, LLAMA_OPTIONS)
            ports[f"llama.cpp, {name}"], _ = stack.enter_context(server)
    except (NotInstalled, AssertionError) as error:
        print(f"llama.cpp is left out, it does not start: {error}\n", flush=True)
    return ports
