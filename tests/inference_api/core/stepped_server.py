"""A server of one tiny model, driven step by step on the thread that tests it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.inference_api_server import bring_up_of
from inference_api.request import GenerationParams, GenerationRequest, SamplingParams
from inference_api.settings import Settings
from tests.inference_api.engine.tiny_models import VOCAB_SIZE

NAME = "tiny"
ROWS, CONTEXT = 4, 512
SEEDED = SamplingParams(temperature=0.8, seed=11)
Tokens = tuple[int, ...]


class Server:
    """Serves a folder's model. `settings` are those of the process."""

    def __init__(self, folder: Path, **settings: object) -> None:
        own = {"user_rows": ROWS, "prefill_chunk_tokens": 48, "model": str(folder)}
        chosen = Settings.model_validate({**own, "model_name": NAME, **settings})
        self._input_queue, self._output_queues = InputQueue(64, {NAME: ROWS}), OutputQueues()
        self.backend = DecodeBackend(
            chosen, self._input_queue, self._output_queues, bring_up_of(chosen)
        )
        self.backend.load_model_and_tokenizer()
        self.backend._rest = lambda: None  # type: ignore[method-assign]  # no waiting for prompts
        self.backend._become_ready()

    def answers(
        self, prompts: Sequence[Tokens], max_tokens: int = 40, cache_salt: str = ""
    ) -> list[Tokens]:
        """What the model says to all of these at once."""
        queues = []
        for prompt in prompts:
            queues.append(self._output_queues.open(NAME))
            params = GenerationParams(max_tokens, cache_salt=cache_salt, sampling=SEEDED)
            self._input_queue.put(GenerationRequest(queues[-1], NAME, prompt, params))
        answers: list[Tokens] = [() for _ in queues]
        open_ones = set(range(len(queues)))
        while open_ones:
            self.backend.step()
            for number in [*open_ones]:
                while (event := queues[number].get(0.0)) is not None:
                    answers[number] += tuple(event.token_ids)
                    if event.finish_reason is not None:
                        open_ones.discard(number)
        self.backend.step()
        return answers

    def stop(self) -> None:
        """End as the decode thread does."""
        [model] = self.backend.models.values()
        model.flush_pages(60)
        model.close()

    @property
    def reused_tokens(self) -> int:
        return self.backend.snapshot.totals.reused_tokens


def check_all_guesses_are_right(
    server: Server, following: Mapping[int, int], max_guesses: int
) -> None:
    """The model answers each token with the one `following` has for it, and its drafts do too."""
    num_steps, expected = 8, [following[7]]
    for _ in range((1 + max_guesses) * num_steps):
        expected.append(following[expected[-1]])
    [answer] = server.answers([(9, 5, 8, 7)], len(expected))
    assert answer == tuple(expected)
    totals = server.backend.snapshot.totals
    assert totals.drafts == num_steps
    assert totals.drafted_tokens == totals.accepted_tokens == max_guesses * num_steps


def text(seed: int, num_tokens: int) -> Tokens:
    return tuple(Random(seed).choices(range(3, VOCAB_SIZE), k=num_tokens))
