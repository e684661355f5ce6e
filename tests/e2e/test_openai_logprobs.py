"""Log probabilities of the embedded model, against transformers' float32 log-softmax."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarking.serving import ServedApi
from inference_api.settings import EMBEDDED_MODEL

MODEL = "hearth-tiny"
PROMPT = "Tell me about Nairobi. The capital of France is"
NUM_NEW = 24
TOP = 5


@pytest.fixture(scope="module")
def client(model_api: ServedApi) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{model_api.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


def exact(token_ids: list[int]) -> torch.Tensor:
    """Log probabilities [position, vocab] of what follows each token."""
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits.log_softmax(-1)


def test_prompt_and_answer_are_scored_as_transformers_does(
    client: openai.OpenAI, tokenizer: Any
) -> None:
    """Sampled, so that bias and temperature would show if they were in the figures."""
    answer = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=NUM_NEW,
        temperature=1.5,
        seed=3,
        echo=True,
        logprobs=TOP,
        logit_bias={"5": 3},
        extra_body={"ignore_eos": True},
    )
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    prompt_ids = tokenizer(PROMPT).input_ids
    again = client.completions.create(
        model=MODEL,
        prompt=prompt_ids,
        max_tokens=NUM_NEW,
        temperature=1.5,
        seed=3,
        logit_bias={"5": 3},
        extra_body={"ignore_eos": True},
    )
    assert choice.text.endswith(again.choices[0].text)
    assert len(logprobs.tokens) == len(prompt_ids) + NUM_NEW
    assert logprobs.token_logprobs[0] is None

    known = exact(prompt_ids)
    for position, token_id in enumerate(prompt_ids[1:]):
        logprob = logprobs.token_logprobs[position + 1]
        assert logprob == pytest.approx(float(known[position, token_id]), abs=1e-4)
        top = logprobs.top_logprobs[position + 1]
        assert max(top.values()) == pytest.approx(float(known[position].max()), abs=1e-4)
        assert len(top) <= TOP + 1
    specials = tokenizer.all_special_tokens
    assert specials[0] in logprobs.tokens
    texts = [token for token in logprobs.tokens if token not in specials]
    assert "".join(texts) == choice.text


def test_offsets_say_where_the_tokens_texts_begin_and_parts_of_a_character_share_theirs(
    client: openai.OpenAI,
) -> None:
    """The model has no token for these characters: each is several."""
    choice = client.completions.create(
        model=MODEL, prompt="né 🎉 ok", max_tokens=0, logprobs=0, extra_body={"echo": True}
    ).choices[0]
    assert choice.text == "né 🎉 ok"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == [
        "<s>",
        "n",
        "\ufffd",
        "\ufffd",
        " ",
        *4 * ["\ufffd"],
        " o",
        "k",
    ]
    assert choice.logprobs.text_offset == [0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 6]


def test_bytes_of_a_chats_tokens_are_those_of_its_text(client: openai.OpenAI) -> None:
    """A regular expression makes the answer one that the model has no whole tokens for."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        logprobs=True,
        extra_body={"structured_outputs": {"choice": ["né 🎉"]}},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(entry.bytes for entry in logprobs.content)
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode() == "né 🎉"


def test_special_tokens_are_named(client: openai.OpenAI) -> None:
    completion = client.completions.create(
        model=MODEL, prompt="a</s>", max_tokens=0, logprobs=1, extra_body={"echo": True}
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["<s>", "a", "</s>"]
    assert logprobs.text_offset == [0, 0, 1]


def test_chat_logprobs_of_a_greedy_answer_are_its_maxima(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of Kenya?"}],
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == answer.choices[0].message.content
    for entry in logprobs.content:
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert bytes(entry.bytes or []).decode() == entry.token


def test_streamed_logprobs_are_those_of_the_whole_answer(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "seed": 5, "logprobs": 2}
    whole = client.completions.create(**fields, echo=True).choices[0].logprobs
    assert whole is not None
    tokens: list[str] = []
    scores: list[float | None] = []
    offsets: list[int] = []
    with client.completions.create(**fields, echo=True, stream=True) as stream:
        for chunk in stream:
            part = chunk.choices[0].logprobs
            tokens += (part and part.tokens) or []
            scores += (part and part.token_logprobs) or []
            offsets += (part and part.text_offset) or []
    assert tokens == whole.tokens
    assert scores[1:] == pytest.approx(whole.token_logprobs[1:], abs=1e-4)
    assert offsets == whole.text_offset
