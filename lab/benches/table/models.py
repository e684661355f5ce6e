"""The two models of `bench-table`, with prompts that they have not seen in training."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from inference_api.settings import EMBEDDED_MODEL
from lab.benches.serve.bench import Workload, served_workload
from lab.kit.completions import Request, complete
from lab.kit.servers import ROOT, ServedApi
from lab.models.default.evaluation import Trial, draw_trials
from lab.models.gguf_file import make_gguf
from scripts.fetch_smollm2 import SMOLLM2, fetch_smollm2

ORDINARY_PROMPTS = ROOT / "lab" / "data" / "ordinary_prompts.txt"
SEED = 20261123  # differs from the seed of the embedded model's own evaluation
ASKED_TOGETHER = 8
CONTEXT_STEP = 64

Prompt = dict[str, Any]  # a body of /v1/tokenize: bare text, or the messages of a chat


@dataclass(frozen=True, slots=True)
class Model:
    """`fetch` returns the value of MODEL, `gguf` a file with the same weights for llama.cpp."""

    name: str
    fetch: Callable[[], Path]
    gguf: Callable[[], Path]
    heads: Path
    prompts: Callable[[int], list[Prompt]]

    def requests(
        self, num_prompts: int, max_tokens: int, quantization: str, copying: bool = False
    ) -> list[Request]:
        """Returns requests whose `max_tokens` are the lengths of this model's own answers, so that
        all servers can write as many tokens and none goes on after the end. Leaves out prompts
        without an answer. With `copying`, each chat has its answer and asks the question again."""
        workload = Workload(self.name, self.fetch(), max_tokens, rounds=1)
        with served_workload(workload, quantization) as api:
            written = self.prompts(num_prompts)
            if copying:
                chats = [prompt["messages"] for prompt in written if "messages" in prompt]
                written = [_asked_again(api, chat, max_tokens) for chat in chats]
            prompts = [_token_ids(api, prompt) for prompt in written]
            with ThreadPoolExecutor(ASKED_TOGETHER) as pool:
                asked = [Request(prompt, max_tokens) for prompt in prompts]
                answers = pool.map(lambda request: complete(api.port, request, False), asked)
                lengths = [answer.num_tokens for answer in answers]
        pairs = zip(prompts, lengths, strict=True)
        return [Request(prompt, length) for prompt, length in pairs if length]


def context_tokens(asked: Sequence[Request]) -> int:
    """Returns a context with room for all requests."""
    longest = max(len(request.prompt) + request.max_tokens for request in asked)
    return -(-longest // CONTEXT_STEP) * CONTEXT_STEP + CONTEXT_STEP


def _token_ids(api: ServedApi, prompt: Prompt) -> tuple[int, ...]:
    response = api.post("/v1/tokenize", **prompt)
    response.raise_for_status()
    return tuple(response.json()["tokens"])


def _asked_again(api: ServedApi, chat: list[dict[str, str]], max_tokens: int) -> Prompt:
    body = {"model": "falcon40b", "messages": chat, "max_tokens": max_tokens, "temperature": 0}
    response = api.post("/v1/chat/completions", **body)
    response.raise_for_status()
    answer = response.json()["choices"][0]["message"]["content"]
    return {"messages": [*chat, {"role": "assistant", "content": answer}, chat[-1]]}


def _held_out(count: int) -> list[Prompt]:
    """Returns questions in held-out wordings, as in the embedded model's evaluation."""
    trials = draw_trials(SEED, per_category=count)
    return [_as_prompt(trial) for trial in Random(SEED).sample(trials, count)]


def _as_prompt(trial: Trial) -> Prompt:
    question = trial.exchange.question
    if not trial.is_chat:
        return {"prompt": question}
    turns = [(turn.question, turn.answer) for turn in trial.history]
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    return {"messages": [*messages, {"role": "user", "content": question}]}


def _ordinary(count: int) -> list[Prompt]:
    lines = ORDINARY_PROMPTS.read_text(encoding="utf-8").splitlines()
    return [{"messages": [{"role": "user", "content": line}]} for line in lines[:count]]


def _embedded_gguf() -> Path:
    file = SMOLLM2.parent / f"{EMBEDDED_MODEL.name}.Q8_0.gguf"
    if not file.exists():
        make_gguf(EMBEDDED_MODEL, file, "Q8_0")
    return file


TABLE_MODELS = {
    "hearth-tiny": Model(
        "hearth-tiny",
        lambda: EMBEDDED_MODEL,
        _embedded_gguf,
        EMBEDDED_MODEL / "medusa",
        _held_out,
    ),
    "smollm2": Model(
        SMOLLM2.name,
        fetch_smollm2,
        fetch_smollm2,
        ROOT / "models" / "smollm2-135m-instruct-medusa",
        _ordinary,
    ),
}
