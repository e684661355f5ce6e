"""Two teams use one session id after the other, at every moment of the decode loop.

The loop runs on the test's thread. Before and after each of its parts it lets the clients act, so
that whatever they do falls between any two of them.
"""

import socket
from collections.abc import Callable, Generator, Iterator
from itertools import product
from typing import Any

import pytest

from common.connections.disconnects import DisconnectWatcher
from inference_api._mock_inference_api_server import ByteTokenizer, EchoRunner
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.generations import Generations, TextGeneration
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.model_loading import loaded_alone
from inference_api.request import Caller, FinishReason, GenerationParams
from inference_api.settings import Settings
from inference_api.watch.live_state import LiveState
from inference_api.watch.metrics import ServerMetrics
from inference_api.watch.recent_requests import RecentRequests

NAME = "hearth-tiny"
PROMPTS = {"alpha": "aaaaaa", "beta": "bbb"}  # the mock model says them again
MOMENTS_OF_A_TURN = 12
MAX_MOMENTS = 20 * MOMENTS_OF_A_TURN  # in which any answer ends

Client = Generator[None, None, None]


class Watcher(DisconnectWatcher):
    """The test says when a client has hung up."""

    def watch(self, client: socket.socket, on_hang_up: Callable[[], None]) -> Callable[[], None]:
        self.hang_up = on_hang_up
        return lambda: None


class Server:
    """Two rows of the mock model, and what a request thread and the dashboard have of it."""

    def __init__(self) -> None:
        settings = Settings(user_rows=2)
        self.input_queue, self.output_queues = queues = InputQueue(4, {NAME: 2}), OutputQueues()
        self.backend = DecodeBackend(settings, *queues)
        runner = EchoRunner(2, max_seq_len=64)
        self.backend.take([loaded_alone(NAME, runner, ByteTokenizer(), settings)])
        self.backend._rest = lambda: None  # type: ignore[method-assign]  # no waiting for prompts
        self.backend._become_ready()
        self.watcher = Watcher()
        metrics = ServerMetrics([], lambda name: pytest.fail("unused"))
        self.recent = RecentRequests()
        self.generations = Generations(
            self.backend, self.watcher, [self.recent], lambda model, gap_s: None
        )
        self._live = LiveState(self.backend, metrics.registry)
        self.connection = socket.socket()
        self.connection.close()  # only the watcher would use it
        for part in (self.backend, runner):
            for name in ("_pick_prompts", "decode", "_push_outputs", "_evict", "step"):
                if part is runner or name != "step":
                    self._let_clients_act_around(part, name)
        self._client: Iterator[None] = iter(())

    def _let_clients_act_around(self, part: object, name: str) -> None:
        if not hasattr(part, name):
            return
        do = getattr(part, name)

        def do_between_moments(*given: Any) -> Any:
            next(self._client, None)
            result = do(*given)
            next(self._client, None)
            return result

        setattr(part, name, do_between_moments)

    def begin(self, team: str) -> TextGeneration:
        caller = Caller("request", team, connection=self.connection)
        params = GenerationParams(session_id="the-same")
        prompt = list(PROMPTS[team].encode())
        with self.generations.admitted(NAME, caller) as admitted:
            return self.generations._queue(admitted, prompt, params, is_first=True)

    def teams_shown(self) -> list[tuple[str, int]]:
        """What the dashboard says of busy rows: whose they are, and how long their prompt is."""
        rows = self._live._rows(0.0)
        return [(row["team_id"], row["prompt_tokens"]) for row in rows if row is not None]

    def run(self, client: Client) -> None:
        is_over = False

        def until_over() -> Iterator[None]:
            nonlocal is_over
            yield from client
            is_over = True

        self._client = until_over()
        while not is_over:
            self.backend.step()


def moments(count: int) -> Client:
    for _ in range(count):
        yield


def read(generation: TextGeneration) -> Generator[None, None, tuple[str, FinishReason | None]]:
    """Wait for the whole answer."""
    tokens: list[int] = []
    for _ in range(MAX_MOMENTS):
        if (event := generation._events.get(0.0)) is None:
            yield
            continue
        tokens += event.token_ids
        if event.finish_reason is not None:
            return bytes(tokens).decode(), event.finish_reason
    return bytes(tokens).decode(), None


def test_no_answer_has_a_token_of_who_used_the_session_id_before() -> None:
    """2,000 and some reuses. One team leaves after so many moments of its answer, at once or after
    the watcher said so; so many moments later the other team begins, and is answered in full."""
    server = Server()
    stays, gaps = range(3 * MOMENTS_OF_A_TURN), range(MOMENTS_OF_A_TURN + 2)
    shown: set[tuple[str, int]] = set()
    wrong: list[tuple[str, FinishReason | None]] = []

    def clients() -> Client:
        for number, (stay, gap, hangs_up) in enumerate(product(stays, gaps, (False, True))):
            first, second = ("alpha", "beta") if number % 2 else ("beta", "alpha")
            left = server.begin(first)
            yield from moments(stay)
            if hangs_up:
                server.watcher.hang_up()
                yield
            left.close()
            yield from moments(gap)
            generation = server.begin(second)
            yield
            shown.update(server.teams_shown())
            answer = yield from read(generation)
            generation.close()
            if answer != (PROMPTS[second], FinishReason.STOP):
                wrong.append(answer)
            yield from moments(number % MOMENTS_OF_A_TURN)

    server.run(clients())
    assert wrong == []
    assert shown == {(team, len(prompt)) for team, prompt in PROMPTS.items()}
