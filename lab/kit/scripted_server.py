"""A server that gives scripted answers at scripted times, to check clients with.

`python -m lab.kit.scripted_server --port 7001 --ttft 0.1 --itl 0.02 --tokens 100`
serves `/v1/chat/completions`, `/v1/models`, `/v1/tokenize`, which counts every word as a token, and
`/ready`. Tests give scripts of any shape by model name. It runs in one event loop, in a process or
thread of its own.
"""

import argparse
import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from benchmarking.load.preflight import PROBE

DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BACKLOG = 2048

Ending = Literal["whole", "broken", "malformed", "error event", "not finished"]


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. `texts[i]` is sent `delays_s[i]` after the previous text.

    `burst` texts leave in one write, when the last of them is due.
    """

    delays_s: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    usage: Mapping[str, Any] | None = None
    status: int = 200
    ending: Ending = "whole"
    takes_images: bool = True
    burst: int = 1


@dataclass(frozen=True, slots=True)
class Stall:
    """A pause of `for_s` seconds that begins `at_s` after the first request."""

    at_s: float = 0.0
    for_s: float = 0.0

    def postponed_s(self, due_s: float) -> float:
        return self.at_s + self.for_s if self.at_s <= due_s < self.at_s + self.for_s else due_s


class ScriptedServer:
    """Answers by `scripts[model]`. Runs in its event loop only; any thread may read the two lists.

    `requests` has the bodies of all completions except the preflight's; `heads` has the heads of
    all requests.
    """

    def __init__(self, scripts: Mapping[str, Script], stall: Stall | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.user_rows: int | None = None  # the answer of /ready; None means 404
        self._scripts = scripts
        self._stall = stall or Stall()
        self._began_s: float | None = None

    async def start(self, port: int = 0) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=BACKLOG)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                path = head.split(b" ", 2)[1].decode().partition("?")[0]
                body = await reader.readexactly(_content_length(head))
                if not await self._answer(path, json.loads(body or b"{}"), writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answers a request. Returns whether the connection stays open."""
        if path.endswith("/models"):
            _reply(writer, 200, {"data": [{"id": name} for name in self._scripts]})
        elif path.endswith("/tokenize"):
            _reply(writer, 200, _tokenized(body))
        elif path == "/ready":
            _reply(writer, 200 if self.user_rows else 404, {"user_rows": self.user_rows})
        elif body["model"] not in self._scripts:
            _reply(writer, 404, {"error": {"message": f"no model {body['model']}"}})
        elif body["messages"][0]["content"] == PROBE.text:
            _reply(writer, 200, {})
        else:
            self.requests.append(body)
            await self._complete(self._scripts[body["model"]], body, writer)
            return False
        await writer.drain()
        return True

    async def _complete(
        self, script: Script, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        has_image = not isinstance(body["messages"][0]["content"], str)
        if has_image and not script.takes_images:
            _reply(writer, 400, {"error": {"message": "messages.0.content: no images here"}})
            return
        if script.status != 200:
            _reply(writer, script.status, {"error": {"message": "as scripted"}})
            return
        writer.write(HEAD)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        self._began_s = start_s if self._began_s is None else self._began_s
        held = b""
        timed = zip(script.texts, accumulate(script.delays_s), strict=True)
        for number, (text, after_s) in enumerate(timed, start=1):
            due_s = self._stall.postponed_s(start_s + after_s - self._began_s) + self._began_s
            await asyncio.sleep(due_s - loop.time())
            held += _chunk(_event(_choice({"content": text})))
            if number % script.burst == 0 or number == len(script.texts):
                writer.write(held)
                held = b""
                await writer.drain()
        writer.write(_ending(script))
        await writer.drain()


def _ending(script: Script) -> bytes:
    finish = _event(_choice({}, "length"))
    usage = _event({"choices": [], "usage": dict(script.usage)}) if script.usage else b""
    return {
        "whole": _chunk(finish) + _chunk(usage + DONE) + _chunk(b""),
        "broken": b"",
        "malformed": _chunk(b"data: {not json\n\n"),
        "error event": _chunk(_event({"error": {"message": "out of memory"}})),
        "not finished": _chunk(b""),
    }[script.ending]


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _tokenized(body: dict[str, Any]) -> dict[str, Any]:
    """Returns one token per word, and two more for a chat."""
    messages = body.get("messages", [])
    words = [word for message in messages for word in message["content"].split()]
    count = len(words) + 2 if messages else len(body["prompt"].split())
    return {"count": count, "max_model_len": 4096, "tokens": list(range(count))}


def _reply(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    writer.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextmanager
def scripted(
    scripts: Mapping[str, Script], stall: Stall | None = None
) -> Iterator[tuple[ScriptedServer, str]]:
    """Yields the server, which runs in a thread of its own, and the base URL of its routes."""
    server = ScriptedServer(scripts, stall)
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever, name="scripted-server")
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--ttft", type=float, default=0.1, help="seconds")
    parser.add_argument("--itl", type=float, default=0.02, help="seconds")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--stall-at", type=float, default=0.0, help="seconds after the first")
    parser.add_argument("--stall", type=float, default=0.0, help="seconds")
    arguments = parser.parse_args()
    delays_s = (arguments.ttft, *[arguments.itl] * (arguments.tokens - 1))
    usage = {"prompt_tokens": 1, "completion_tokens": arguments.tokens}
    script = Script(delays_s, (" word",) * arguments.tokens, usage)
    server = ScriptedServer({arguments.model: script}, Stall(arguments.stall_at, arguments.stall))
    asyncio.run(_serve_forever(server, arguments.port))


async def _serve_forever(server: ScriptedServer, port: int) -> None:
    await (await server.start(port)).serve_forever()


if __name__ == "__main__":
    main()
