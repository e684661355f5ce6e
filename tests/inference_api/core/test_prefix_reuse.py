"""Reused prefixes change nothing but the time: real weights, with and without reuse."""

import pytest

from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.inference_api_server import bring_up_of
from inference_api.request import GenerationParams, GenerationRequest, OutputQueue, SamplingParams
from inference_api.settings import Settings

NAME = "hearth-tiny"
SEEDED = SamplingParams(temperature=0.8, top_k=50, seed=11)
SYSTEM = "You are a friendly teller of stories for small children. Keep it short. "


class Conversations:
    """The embedded model, driven step by step on this thread."""

    def __init__(self, settings: Settings) -> None:
        self.input_queue, self.output_queues = InputQueue(64, {NAME: 4}), OutputQueues()
        self.backend = DecodeBackend(
            settings, self.input_queue, self.output_queues, bring_up_of(settings)
        )
        self.backend.load_model_and_tokenizer()
        self.backend._rest = lambda: None  # type: ignore[method-assign]  # no waiting for prompts
        self.backend._become_ready()

    def submit(self, text: str) -> OutputQueue:
        queue = self.output_queues.open(NAME)
        prompt = tuple(self.backend.served[NAME].tokenizer.encode(text))
        self.input_queue.put(
            GenerationRequest(queue, NAME, prompt, GenerationParams(12, sampling=SEEDED))
        )
        return queue

    def answers(self, texts: list[str]) -> list[str]:
        """What the model says to all of these at once."""
        queues = [self.submit(text) for text in texts]
        answers: list[list[int]] = [[] for _ in queues]
        for queue, answer in zip(queues, answers, strict=True):
            is_over = False
            while not is_over:
                while (event := queue.get(0.0)) is None:
                    self.backend.step()
                answer += event.token_ids
                is_over = event.finish_reason is not None
        return [self.backend.served[NAME].tokenizer.decode(answer) for answer in answers]


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_three_turns_of_four_chats_say_the_same_with_and_without_reuse(quantization: str) -> None:
    conversations = []
    for reuse in (True, False):
        settings = Settings.model_validate(
            {
                "quantization": quantization,
                "user_rows": 4,
                "max_seq_len": 256,
                "prefill_chunk_tokens": 8,
                "prefix_reuse": reuse,
            }
        )
        model = Conversations(settings)
        texts = [f"{SYSTEM}Tell me about a {animal}." for animal in ("fox", "owl", "bear")]
        texts.append(texts[0])
        for _ in range(3):
            answers = model.answers(texts)
            texts = [f"{text}{said} And then?" for text, said in zip(texts, answers, strict=True)]
        conversations.append(texts)
        assert (model.backend.snapshot.totals.reused_tokens > 100) == reuse
    assert conversations[0] == conversations[1]
