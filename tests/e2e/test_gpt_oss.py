"""A gpt-oss of random weights behind a template of its kind: served, and heard in its own words."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from tokenizers import Tokenizer
from transformers import GptOssConfig, GptOssForCausalLM

from inference_api.tools.dialects import HARMONY
from lab.kit.servers import ROOT, ServedApi
from lab.models.random_model import SHAPES, make_random_model
from tests.e2e.test_tools import QUESTION, TOOLS, check
from tests.forked import served

TEMPLATE = ROOT / "tests" / "data" / "templates" / "harmony.jinja"
SPECIAL = [*HARMONY.markers, "<|return|>"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("gpt-oss")
    model = folder / "random"
    make_random_model(SHAPES["tiny"], model, TEMPLATE.read_text())  # for its tokenizer
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(model / "tokenizer.json"))
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
        eos_token_id=tokenizer.token_to_id("<|return|>"),
    )
    GptOssForCausalLM(config).bfloat16().save_pretrained(model)
    with served(folder / "log", MODEL=model, QUANTIZATION="int8") as api:
        yield api


def test_thoughts_and_calls_are_told_apart(client: openai.OpenAI) -> None:
    """It may think or say something first, which at random has no end."""
    answers = client.chat.completions.create(
        model="random",
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        reasoning_effort="low",
        max_tokens=300,
        n=16,
        seed=1,
    ).choices
    heard = set()
    for answer in answers:
        message: Any = answer.message
        thoughts = getattr(message, "reasoning_content", None)
        assert not any(mark in f"{thoughts}{message.content}" for mark in SPECIAL)
        heard |= {"thoughts"} if thoughts else set()
        heard |= {"text"} if message.content else set()
        if answer.finish_reason == "tool_calls":
            check(message.tool_calls)
            heard.add("calls")
        else:
            assert answer.finish_reason == "length"
    assert heard == {"calls", "text", "thoughts"}


def test_a_result_goes_back_into_the_conversation(client: openai.OpenAI) -> None:
    call = {"name": "weather", "arguments": json.dumps({"city": "Oslo", "unit": "kelvin"})}
    turns: list[Any] = [
        *QUESTION,
        {
            "role": "assistant",
            "reasoning_content": "I look.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "271"},
    ]
    answer = client.chat.completions.create(
        model="random", messages=turns, tools=TOOLS, max_tokens=20, seed=1
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 40
