"""Log probabilities of the embedded model, against transformers' float32 log-softmax."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference_api.settings import EMBEDDED_MODEL
from lab.kit.servers import ServedApi

MODEL = "hearth-tiny"
PROMPT = "Tell me about Nairobi. The capital of France is"
NUM_NEW = 24
TOP = 5


@pytest.fixture(scope="module")
def client(exact_api: ServedApi) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{exact_api.url}/v1", api_key="none", max_retries=0) as client:
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


def test_prompt_logprobs_are_transformers_own_with_ranks(
    client: openai.OpenAI, tokenizer: Any
) -> None:
    prompt_ids = tokenizer(PROMPT).input_ids
    wanted = exact(prompt_ids)
    for _ in range(2):  # the second time the prompt is in a row's cache already
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=0, extra_body={"prompt_logprobs": 2}
        )
        choice: Any = answer.choices[0]
        first, *rest = choice.prompt_logprobs
        assert (first, choice.text) == (None, "")
        for place, (token_id, shown) in enumerate(zip(prompt_ids[1:], rest, strict=True)):
            row = wanted[place]
            own = shown[str(token_id)]
            assert own["logprob"] == pytest.approx(row[token_id].item(), abs=1e-3)
            assert own["rank"] == int((row > row[token_id]).sum()) + 1
            assert {int(id_) for id_ in shown} == {token_id, *row.topk(2).indices.tolist()}
            assert all(
                tokenizer.decode(int(id_)) == each["decoded_token"] for id_, each in shown.items()
            )


def test_prompt_logprobs_stand_where_vllm_has_them(client: openai.OpenAI, tokenizer: Any) -> None:
    chat: Any = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=2,
        n=2,
        extra_body={"prompt_logprobs": 0},
    )
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    assert all(len(each) == 1 for each in chat.prompt_logprobs[1:])
    assert chat.choices[0].logprobs is None
    pair: Any = client.completions.create(
        model=MODEL,
        prompt=["Hello there", "Good bye"],
        max_tokens=2,
        n=2,
        echo=True,
        logprobs=3,
        extra_body={"prompt_logprobs": 1},
    )
    shown = [choice.prompt_logprobs for choice in pair.choices]
    assert shown[0] == shown[1] != shown[2] == shown[3]
    for choice in pair.choices:
        echoed = choice.logprobs.token_logprobs[1 : len(choice.prompt_logprobs)]
        ids = tokenizer(["Hello there", "Good bye"][choice.index // 2]).input_ids[1:]
        pairs = zip(ids, choice.prompt_logprobs[1:], strict=True)
        own = [each[str(token_id)]["logprob"] for token_id, each in pairs]
        assert own == pytest.approx(echoed, abs=1e-3)
        assert all(len(each) <= 2 for each in choice.prompt_logprobs[1:])
        assert max(map(len, choice.logprobs.top_logprobs[1:])) >= 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs: is 21; give 20 or less."),
        ({"prompt_logprobs": -1}, "prompt_logprobs: is -1; give 0 or more."),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs: come with whole answers; leave"),
        ({"prompt": ["a"] * 128, "prompt_logprobs": 8}, "prompt_logprobs: are 9 with each token"),
        ({"prompt": ["a"] * 128, "logprobs": 8, "echo": True}, "logprobs: are 9 with each token"),
        ({"prompt": ["a"] * 64, "n": 4, "logprobs": 4}, "logprobs: are 5 with each token"),
        ({"max_tokens": 0}, "max_tokens: is 0, which needs echo: true or prompt_logprobs; give"),
    ],
)
def test_bounds_of_prompt_logprobs(
    model_api: ServedApi, fields: dict[str, Any], message: str
) -> None:
    response = model_api.post("/v1/completions", **{"model": MODEL, "prompt": "a", **fields})
    assert response.status_code == 400
    assert response.json()["message"].startswith(message)
