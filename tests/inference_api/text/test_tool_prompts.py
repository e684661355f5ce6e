"""Tools, calls and results as templates want them, and nothing in them that forges a turn."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inference_api.errors import InvalidRequest
from inference_api.text.chat_prompts import Extras
from inference_api.text.tokenizer_config import TokenizerConfig
from inference_api.text.tokens import HuggingFaceTokenizer, is_thinking
from inference_api.tools.events import Tool
from inference_api.tools.history import ids_behind

SPECIALS = ["</s>", "<|im_start|>", "<|python_tag|>", "[TOOL_CALLS]"]
TOOL = Tool("look", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})
EXTRAS = Extras([TOOL.as_json()])
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}</s>{% endfor %}<|im_start|>assistant:"
)
NATIVE = "{{ tools | tojson if tools else '' }}" + TURNS
HERMES = NATIVE.replace(
    "CALL", '<tool_call>{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}</tool_call>',
)  # fmt: skip
DEEPSEEK = NATIVE.replace(
    "CALL", "{{ '<｜tool▁calls▁begin｜>' + c.function.name + c.function.arguments }}"
)
KIMI = NATIVE.replace(
    "CALL", "<|tool_calls_section_begin|>{{ c.id }}|{{ c.function.arguments | tojson }}"
).replace("{{ m.content }}", "{{ m.name }}|{{ m.tool_call_id }}|{{ m.content }}")
GLM = NATIVE.replace(
    "CALL", "<arg_key>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
)  # fmt: skip
GEMMA = NATIVE.replace(
    "CALL", "<|tool_call>call:{{ c.function.name }}{{ '{' }}"
    "{% for k, v in c.function.arguments | dictsort %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}"
    "{{ '}' }}<tool_call|>",
)  # fmt: skip
LLAMA = "<|start_header_id|>ipython" + NATIVE.replace(
    "{% for c", "{% if m.tool_calls and m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call only') }}{% endif %}{% for c",
).replace("CALL", "{{ c.function.name }}{{ c.function.arguments | tojson }}")  # fmt: skip
MISTRAL = NATIVE.replace("CALL", "[TOOL_CALLS]{{ c.function | tojson }}:{{ c.id }}").replace(
    "{{ m.content }}", "{{ m.content }}{% if m.tool_call_id %}:{{ m.tool_call_id }}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{% endif %}",
)  # fmt: skip
NO_TOOLS = TURNS.replace("{% for c in m.tool_calls or [] %}CALL{% endfor %}", "")
# As Gemma's: no system, and speakers in turn.
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('in turn') }}{% endif %}{% endfor %}" + NO_TOOLS
)
HARMONY = Path("tests/data/templates/harmony.jinja").read_text()
ARGUMENTS = '{"city": "Oslo"}'


@cache
def tokenizer(template: str | None) -> HuggingFaceTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    templates = {} if template is None else {"default": template}
    config = TokenizerConfig(special_tokens={"eos_token": "</s>"}, templates=templates)
    return HuggingFaceTokenizer(backend, config, frozenset({256}))


def call(arguments: str = ARGUMENTS, call_id: str = "call_1", name: str = "look") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def conversation(*calls: dict[str, Any], result: str = "12") -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [*calls]},
        *({"role": "tool", "tool_call_id": c["id"], "content": result} for c in calls),
    ]


def prompt(template: str | None, messages: list[dict[str, Any]], extras: Extras = EXTRAS) -> str:
    ids = tokenizer(template).encode_chat(messages, extras)
    return tokenizer(template).decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "name", "written"),
    [
        (HERMES, "hermes", '"arguments": {"city": "Oslo"}}'),
        (HARMONY, "harmony", 'functions.look<|channel|>commentary json<|message|>{"city": "Oslo"}'),
        (DEEPSEEK, "deepseek", 'look{"city": "Oslo"}'),
        (KIMI, "kimi", 'functions.look:0|{"city": "Oslo"}'),
        (GLM, "glm", "lookcity=Oslo;"),
        (GEMMA, "gemma", '<|tool_call>call:look{city:<|"|>Oslo<|"|>}<tool_call|>'),
        (LLAMA, "llama", 'look{"city": "Oslo"}'),
        (MISTRAL, "mistral", '[TOOL_CALLS]{"name": "look", "arguments": {"city": "Oslo"}}'),
        (NO_TOOLS, "generic", '{"tool_calls": [{"name": "look", "arguments": {"city": "Oslo"}}]}'),
        (ALTERNATING, "generic", "Result of look:\n12"),
        (HERMES.removeprefix("{{ tools | tojson if tools else '' }}"), "generic", '"tool_calls"'),
        (None, "generic", '{"tool_calls": [{"name": "look", "arguments": {"city": "Oslo"}}]}'),
    ],
)
def test_calls_are_written_as_the_template_wants_them(
    template: str | None, name: str, written: str
) -> None:
    assert tokenizer(template).dialect.name == name
    said = prompt(template, conversation(call()))
    assert written in said
    assert "12" in said
    assert "Looks." in said  # the tool


def test_tools_are_described_in_the_first_turn_where_there_is_no_system() -> None:
    said = prompt(ALTERNATING, conversation(call(), call(call_id="call_2")))
    assert said.count("<|im_start|>user:") == 2
    assert said.index("You can call these tools") < said.index("hi</s>")


def test_a_template_for_single_calls_gets_each_with_its_result() -> None:
    messages = conversation(call(), call('{"city": "Rome"}', "call_2"))
    messages[2]["content"], messages[3]["content"] = "cold", "warm"
    said = prompt(LLAMA, messages)
    places = [said.index(text) for text in ("Oslo", "cold", "Rome", "warm")]
    assert places == sorted(places)
    swapped = prompt(LLAMA, [messages[0], messages[1], messages[3], messages[2]])
    assert all(text in swapped for text in ("Oslo", "cold", "Rome", "warm"))


def test_ids_of_mistral_are_nine_letters_and_digits() -> None:
    said = prompt(MISTRAL, conversation(call(call_id="call_abcdef")))
    (written,) = {part[:9] for part in said.split("}}:")[1:]}
    assert written.isalnum()
    assert said.count(f":{written}") == 2  # of the call, and of its result
    assert ":abc123DEF" in prompt(MISTRAL, conversation(call(call_id="abc123DEF")))


def test_ids_of_kimi_are_numbered_through_the_conversation() -> None:
    again, other = call(call_id="call_1"), call(call_id="toolu_2", name="add-up")
    said = prompt(KIMI, [*conversation(call(), other), *conversation(again)])
    written = ["functions.look:0", "functions.add-up:1", "functions.look:2"]
    assert re.findall(r"begin\|>([^|]+)", said) == written
    assert re.findall(r"\|(functions[^|]+)\|12", said) == written  # of the results


def test_ids_for_kimi_go_on_behind_the_conversation() -> None:
    kept = conversation(call(call_id="functions.look:3"), call(call_id="toolu_2"))
    for turns, number in ((conversation(), 0), (conversation(call(), call()), 2), (kept, 4)):
        new_id = ids_behind(turns)
        assert [new_id("look"), new_id("now")] == [
            f"functions.look:{number}", f"functions.now:{number + 1}"
        ]  # fmt: skip


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"a"', '{"a": "\\ud800"}', "{" * 5000])
def test_arguments_that_a_model_wrote_badly_are_no_error(arguments: str) -> None:
    for template in (HERMES, DEEPSEEK, NO_TOOLS):
        assert "12" in prompt(template, conversation(call(arguments)))


FORGED = st.lists(st.sampled_from([*SPECIALS, "<", "a", " "]), max_size=5).map("".join)


def in_json(text: str) -> str:
    return json.dumps({text: [text, {"a": text}]})


@given(text=FORGED)
@pytest.mark.parametrize("template", [HERMES, DEEPSEEK, LLAMA, NO_TOOLS, None])
def test_nothing_of_a_tool_writes_a_special_token(template: str | None, text: str) -> None:
    def count(said: str) -> int:
        schema = {"type": said, "properties": {said: {"description": said, "enum": [said]}}}
        extras = Extras([Tool("look", said, schema).as_json()], {"opening": said})
        messages = conversation(call(in_json(said), said, said), result=said)
        messages[1]["reasoning_content"] = said
        ids = tokenizer(template).encode_chat(messages, extras)
        return sum(tokenizer(template).special_token(id_) is not None for id_ in ids)

    assert count(text) == count("a")


def test_options_of_the_template_are_given_to_it() -> None:
    template = TURNS + "{% if enable_thinking %}<think>\n{% endif %}"
    hello = [{"role": "user", "content": "hi"}]
    for options, thinks in (({}, False), ({"enable_thinking": True}, True)):
        ids = tokenizer(template).encode_chat(hello, Extras((), options))
        assert is_thinking(tokenizer(template), ids) is thinks


def test_thoughts_go_back_under_the_name_that_the_template_reads() -> None:
    harmony = TURNS.replace("{{ m.content }}", "<|channel|>{{ m.thinking }}|{{ m.content }}")
    others = TURNS.replace("{{ m.content }}", "{{ m.reasoning_content }}|{{ m.content }}")
    turn = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    hello = {"role": "user", "content": "a"}
    for template in (harmony, others):
        assert "hm|b</s>" in prompt(template, [hello, turn, hello], Extras())


def test_a_refusal_of_the_template_is_the_clients_to_mend() -> None:
    messages = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(InvalidRequest, match="in turn"):
        tokenizer(ALTERNATING).encode_chat(messages)


# As Mistral's and Gemma 3's: a system turn may come first, then speakers alternate.
FIRST_SYSTEM = (
    "{% set own = messages %}{% if messages[0].role == 'system' %}<|im_start|>"
    "{{ messages[0].content }}</s>{% set own = messages[1:] %}{% endif %}"
    + ALTERNATING.replace("in messages", "in own")
)


@pytest.mark.parametrize("template", [ALTERNATING, FIRST_SYSTEM, NO_TOOLS, HERMES, HARMONY, None])
def test_turns_as_agents_send_them_fit_every_template(template: str | None) -> None:
    """Claude Code has the system speak behind the user, Codex two users in a row."""
    said = prompt(
        template,
        [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "where"},
            {"role": "system", "content": "reminder"},
            {"role": "user", "content": "what"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "next"},
        ],
        Extras(),
    )
    places = [said.index(each) for each in ("rules", "where", "reminder", "what", "yes", "next")]
    assert places == sorted(places)
