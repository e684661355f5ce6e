"""Chat templates written as transformers writes them, character by character."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from tokenizers import Tokenizer, models
from transformers import TokenizersBackend

from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.chat_template import ChatTemplate
from inference_api.text.tokenizer_config import TokenizerConfig

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>"}
TEMPLATES = {
    "embedded": json.loads((EMBEDDED_MODEL / "tokenizer_config.json").read_text())["chat_template"],
    **{file.stem: file.read_text() for file in Path("tests/data/templates").glob("*.jinja")},
    "json": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}"
    "{{ documents | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
    "names": "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}{{ enable_thinking }}",
    "blocks": "  {% for m in messages %}\n    {# said #}\n"
    "{% if loop.first %}{% continue %}{% endif %}\n"
    "    {% generation %}{% set inner = m.content %}{{ inner }}\n{% endgeneration %}\n"
    "{% if loop.index > 2 %}{% break %}{% endif %}\n  {% endfor %}{{ inner }}",
    "values": "{% set n = namespace(a=1, self=2) %}{% set n.b = dict(c=3) %}{{ n.a }}{{ n.b }}"
    "{% macro say(m) %}{{ m.role | upper }}: {{ m.get('content') or '-' }}{% endmacro %}"
    "{% for m in messages %}{{ say(m) }}{{ m.reasoning_content }}|{{ m.thinking }}\n{% endfor %}"
    "{{ messages[-1].keys() | list }}{{ strftime_now('%Y') }}{{ messages | length }}",
    "refusals": "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('“no”') }}"
    "{% endif %}{{ m.content + 'x' }}{% endfor %}",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Sucht – <b>\"dort\" & 'hier'</b>",
            "parameters": {"type": "object", "properties": {"stadt": {"type": ["string", "null"]}}},
        },
    }
]
CALL = {"id": "abcd12345", "type": "function"}
CALLS = [{**CALL, "function": {"name": "look", "arguments": {"stadt": "Århus", "n": None}}}]
TEXTS = st.none() | st.text(max_size=8) | st.sampled_from(["</s>", " a\n", "<think>\nb</think>c"])
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXTS},
    optional={
        "name": st.just("Zoë"),
        "reasoning_content": TEXTS,
        "tool_calls": st.none() | st.just(CALLS),
        "tool_call_id": st.just("abcd12345"),
    },
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False, "documents": [{"title": "é", "text": "b"}]},
]


@cache
def both(name: str) -> tuple[ChatTemplate, TokenizersBackend]:
    text = TEMPLATES[name]
    config = TokenizerConfig(special_tokens=NAMED, templates={"default": text})
    backend = Tokenizer(models.BPE({"a": 0}, []))
    return ChatTemplate(config), TokenizersBackend(
        tokenizer_object=backend, chat_template=text, **NAMED
    )


def said_or_refused(render: Any, *given: Any, **options: Any) -> str:
    try:
        return str(render(*given, **options))
    except (TemplateError, TypeError) as error:
        return f"{type(error)} {error}"


@pytest.mark.parametrize("name", TEMPLATES)
@given(turns=st.lists(TURNS, min_size=1, max_size=4))
def test_prompt_is_the_one_that_transformers_writes(name: str, turns: list[dict[str, Any]]) -> None:
    ours, theirs = both(name)
    for tools, options, begins in product([[], TOOLS], OPTIONS, [True, False]):
        written = said_or_refused(ours.render, turns, tools, begins, options)
        assert written == said_or_refused(
            theirs.apply_chat_template,
            turns,
            tools=tools or None,
            tokenize=False,
            add_generation_prompt=begins,
            **options,
        )
