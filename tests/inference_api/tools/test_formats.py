"""What models write, read format by format; and that pieces change nothing."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_api.tools import dialects, formats
from inference_api.tools.answers import AnswerReader, Thought
from inference_api.tools.calls import Calls
from inference_api.tools.dialects import Dialect
from inference_api.tools.events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Json,
)
from inference_api.tools.parts import WholeAnswer, whole_answer

SCHEMAS: dict[str, Json] = {
    "look": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "add-up": {},
}
THOUGHT = Thought("<think>", "</think>")
CITY = '{"city": "Oslo"}'
BRACES = '{"city": "a \\"}]</tool_call> \\\\", "x": [{}]}'


def events_of(
    dialect: Dialect,
    pieces: Sequence[str],
    thought: Thought | None = None,
    is_thinking: bool = False,
) -> list[Event]:
    ids = itertools.count()
    found = Calls(SCHEMAS, lambda _: f"id{next(ids)}")
    reader = AnswerReader(dialect.read, found, thought, is_thinking)
    return [*(e for piece in pieces for e in reader.push(piece)), *reader.finish()]


def read(dialect: Dialect, text: str) -> WholeAnswer:
    return whole_answer(events_of(dialect, [text]))


def calls(dialect: Dialect, text: str) -> list[tuple[str, str]]:
    return [(call.name, call.text) for call in read(dialect, text).calls]


HERMES_CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'
DEEPSEEK_CALL = (
    f"{formats.BEGIN_ALL}{formats.BEGIN}look{formats.SEPARATOR}{CITY}{formats.END}{formats.END_ALL}"
)
OLD_DEEPSEEK_CALL = (
    f"{formats.BEGIN_ALL}{formats.BEGIN}function{formats.SEPARATOR}look"
    f"\n```json\n{CITY}\n```{formats.END}{formats.END_ALL}"
)
CODER_CALL = (
    "<tool_call>\n<function=look>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
)
SEED_CALL = (
    "<seed:tool_call><function=look><parameter=city>Oslo</parameter></function></seed:tool_call>"
)
GLM_CALL = "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
KIMI_CALL = (
    f"{formats.SECTION}{formats.KIMI_BEGIN}functions.look:0{formats.ARGUMENTS}{CITY}"
    f"{formats.KIMI_END}{formats.SECTION_END}"
)
GEMMA_CALL = '<|tool_call>call:look{city:<|"|>Oslo<|"|>}<tool_call|>'
HARMONY_CALL = (
    "<|channel|>commentary to=functions.look <|constrain|>json<|message|>" + CITY + "<|call|>"
)
ONE_CALL = [
    (dialects.HERMES, HERMES_CALL),
    (dialects.HERMES, f'<tool_call>{{"arguments": {CITY}, "name": "look"}}</tool_call>'),
    (dialects.HERMES, '<tool_call>{"name":"look","arguments":"{\\"city\\": \\"Oslo\\"}"}'),
    (dialects.GRANITE, f'<|tool_call|>[{{"name": "look", "arguments": {CITY}}}]'),
    (dialects.GRANITE, f'<tool_call>[{{"name": "look", "arguments": {CITY}}}]</tool_call>'),
    (dialects.PHI, f'<|tool_call|>[{{"name": "look", "arguments": {CITY}}}]<|/tool_call|>'),
    (dialects.PHI, f'functools[{{"name": "look", "arguments": {CITY}}}]'),
    (dialects.HUNYUAN, f'<tool_calls>[\n  {{"name": "look", "arguments": {CITY}}}\n]</tool_calls>'),
    (dialects.NEMOTRON, f'<TOOLCALL>[{{"name": "look", "arguments": {CITY}}}]</TOOLCALL>'),
    (dialects.SEED, CODER_CALL.replace("tool_call>", "seed:tool_call>")),
    (dialects.SEED, SEED_CALL),
    (dialects.LLAMA, f'{{"name": "look", "parameters": {CITY}}}'),
    (dialects.LLAMA, f'{{"type": "function", "name": "look", "parameters": {CITY}}}'),
    (dialects.LLAMA, f'<|python_tag|>{{"name": "look", "parameters": {CITY}}}'),
    (dialects.LLAMA, '<|python_tag|>look.call(city="Oslo")'),
    (dialects.MISTRAL, f'[TOOL_CALLS][{{"name": "look", "arguments": {CITY}}}]'),
    (dialects.MISTRAL, f"[TOOL_CALLS]look{CITY}"),
    (dialects.MISTRAL, f"[TOOL_CALLS]look[CALL_ID]abcdefghi[ARGS]{CITY}"),
    (dialects.GENERIC, f'{{"tool_calls": [{{"name": "look", "arguments": {CITY}}}]}}'),
    (dialects.GENERIC, f'```json\n{{"tool_calls": [{{"name": "look", "arguments": {CITY}}}]}}```'),
    (dialects.GENERIC, f'<tool_call>[{{"name": "look", "arguments": {CITY}}}]</tool_call>'),
    (dialects.DEEPSEEK, DEEPSEEK_CALL),
    (dialects.DEEPSEEK, OLD_DEEPSEEK_CALL),
    (dialects.KIMI, KIMI_CALL),
    (dialects.KIMI, KIMI_CALL.replace("functions.look:0", "look ").replace("|><|", "|>\n<|")),
    (dialects.KIMI, KIMI_CALL.removeprefix(formats.SECTION)),
    (dialects.KIMI, KIMI_CALL.partition(formats.KIMI_END)[0]),
    (dialects.QWEN_CODER, CODER_CALL),
    (dialects.QWEN_CODER, CODER_CALL.removeprefix("<tool_call>\n")),
    (dialects.QWEN_CODER, "<tool_call><function=look><parameter=city>Oslo"),
    (dialects.GLM, GLM_CALL),
    (dialects.GEMMA, GEMMA_CALL),
    (dialects.GEMMA, GEMMA_CALL.removesuffix("<tool_call|>")),
    (dialects.GEMMA, '<|tool_call>call:look{"city": "Oslo"}<tool_call|>'),
    (dialects.HARMONY, HARMONY_CALL),
    (dialects.HARMONY, HARMONY_CALL.removesuffix("<|call|>")),
    (
        dialects.HARMONY,
        "<|start|>assistant to=functions.look<|channel|>commentary json<|message|>" + CITY,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "text"), ONE_CALL)
def test_a_call_is_read_as_it_was_written(dialect: Dialect, text: str) -> None:
    answer = read(dialect, text)
    assert [(call.name, call.text) for call in answer.calls] == [("look", CITY)]
    assert answer.text == ""


SEVERAL = [
    (dialects.HERMES, HERMES_CALL + "\n" + HERMES_CALL),
    (dialects.LLAMA, '{"name": "look", "parameters": {"city": "Oslo"}}; '
     '{"name": "look", "parameters": {"city": "Oslo"}}'),
    (dialects.MISTRAL, f"[TOOL_CALLS]look{CITY}[TOOL_CALLS]look{CITY}"),
    (dialects.GENERIC, f'{{"tool_calls": [{{"name": "look", "arguments": {CITY}}}, '
     f'{{"name": "look", "arguments": {CITY}}}]}}'),
    (dialects.DEEPSEEK, DEEPSEEK_CALL + DEEPSEEK_CALL),
    (dialects.KIMI, KIMI_CALL + KIMI_CALL),
    (dialects.KIMI, KIMI_CALL.removesuffix(formats.SECTION_END) + "\n"
     + KIMI_CALL.removeprefix(formats.SECTION).replace(":0", ":12")),
    (dialects.QWEN_CODER, CODER_CALL + "\n" + CODER_CALL),
    (dialects.GLM, GLM_CALL + GLM_CALL),
    (dialects.SEED, SEED_CALL + "\n" + SEED_CALL),
    (dialects.NEMOTRON, f'<TOOLCALL>[{{"name": "look", "arguments": {CITY}}}, '
     f'{{"name": "look", "arguments": {CITY}}}]</TOOLCALL>'),
    (dialects.GEMMA, GEMMA_CALL + GEMMA_CALL),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "text"), SEVERAL)
def test_several_calls_are_numbered_without_gaps(dialect: Dialect, text: str) -> None:
    events = events_of(dialect, [text])
    assert [e.index for e in events if isinstance(e, CallStart)] == [0, 1]
    assert [e.index for e in events if isinstance(e, CallEnd)] == [0, 1]
    assert calls(dialect, text) == [("look", CITY)] * 2
    assert read(dialect, text).text == ""


@pytest.mark.parametrize(("dialect", "text"), ONE_CALL)
def test_text_before_a_call_is_kept_without_the_space_between(dialect: Dialect, text: str) -> None:
    if not text.startswith(("{", "```")):
        answer = read(dialect, "I will look.\n\n" + text)
        assert (answer.text, len(answer.calls)) == ("I will look.", 1)


def test_braces_quotes_and_tags_in_texts_end_nothing() -> None:
    text = f'<tool_call>{{"name": "look", "arguments": {BRACES}}}</tool_call>'
    assert calls(dialects.HERMES, text) == [("look", BRACES)]
    assert json.loads(calls(dialects.HERMES, text)[0][1])["x"] == [{}]


@pytest.mark.parametrize("arguments", ['"arguments": null', '"arguments": {}', '"arguments": ""'])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    text = f'<tool_call>{{"name": "look", {arguments}}}</tool_call>'
    assert calls(dialects.HERMES, text) == [("look", "{}")]
    assert calls(dialects.HERMES, '<tool_call>{"name": "look"}</tool_call>') == [("look", "{}")]
    assert calls(dialects.QWEN_CODER, "<function=look></function>") == [("look", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "look"',
        '<tool_call>{"name": "look", "arguments": 5}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}',
        "a <tool_call",
        "<tool_call>",
        "a < b <tool",
        " white space is kept \n",
        "",
    ],
)
def test_what_is_no_call_of_a_known_tool_is_text(text: str) -> None:
    answer = read(dialects.HERMES, text)
    assert (answer.text, answer.calls) == (text, ())


def test_a_json_answer_is_no_call_of_llama() -> None:
    for text in ('{"city": "Oslo"}', '{"name": "Ada", "parameters": {}}', '{"name": '):
        assert read(dialects.LLAMA, text) == WholeAnswer(text, "", ())


def test_values_in_tags_have_the_types_of_their_schema() -> None:
    text = (
        "<function=look><parameter=city>12</parameter><parameter=days>3</parameter>"
        "<parameter=note>a\nb</parameter><parameter=on>true</parameter></function>"
    )
    ((_, arguments),) = calls(dialects.QWEN_CODER, text)
    assert json.loads(arguments) == {"city": "12", "days": 3, "note": "a\nb", "on": True}


def test_values_of_gemma_become_json() -> None:
    text = (
        '<|tool_call>call:look{city:<|"|>a "b", {c}:[<|"|>,days:-3,odd:not so,no:None,on:true,'
        'where:{at:[1.5,<|"|>x<|"|>,[]],of:{},"or":null}}<tool_call|>'
    )
    ((_, arguments),) = calls(dialects.GEMMA, text)
    assert json.loads(arguments) == {
        "city": 'a "b", {c}:[',
        "days": -3,
        "odd": "not so",
        "no": None,
        "on": True,
        "where": {"at": [1.5, "x", []], "of": {}, "or": None},
    }
    assert calls(dialects.GEMMA, "<|tool_call>call:add-up{}<tool_call|>") == [("add-up", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "<|tool_call>call:unknown{}<tool_call|>",
        "<|tool_call>look{}",
        "<|tool_call>call:look[]",
        "<|tool_call>call:look",
        "a <|tool",
    ],
)
def test_what_is_no_call_of_gemma_is_text(text: str) -> None:
    assert (read(dialects.GEMMA, text).text, calls(dialects.GEMMA, text)) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        KIMI_CALL.replace("look", "unknown"),
        KIMI_CALL.replace(CITY, "5"),
        KIMI_CALL.replace(formats.ARGUMENTS, ""),
        KIMI_CALL[:70],
        "<|tool_calls_section_begin|>",
        "a <|tool_call_b",
    ],
)
def test_what_is_no_call_of_kimi_is_text(text: str) -> None:
    assert (read(dialects.KIMI, text).text, calls(dialects.KIMI, text)) == (text, [])


def test_arguments_of_gemma_are_no_deeper_than_others() -> None:
    text = "<|tool_call>call:look{a:" + 200 * "[" + 200 * "]" + "}<tool_call|>"
    assert calls(dialects.GEMMA, text) == [("look", "")]


def test_gemma_calls_what_it_thinks_a_thought() -> None:
    thought = dialects.thought_of("<|channel>thought\n<channel|>")
    text = f"<|channel>thought\nHm.\n<channel|>Oslo. {GEMMA_CALL}"
    answer = whole_answer(events_of(dialects.GEMMA, [text], thought))
    assert (answer.thoughts, answer.text, len(answer.calls)) == ("Hm.", "Oslo.", 1)
    begun = whole_answer(events_of(dialects.GEMMA, ["Hm.<channel|>"], thought, is_thinking=True))
    assert (begun.thoughts, begun.text) == ("Hm.", "")


def test_harmony_sorts_thoughts_text_and_calls() -> None:
    answer = read(
        dialects.HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.add-up "
        "<|constrain|>json<|message|>{}",
    )
    assert (answer.thoughts, answer.text) == ("Hm.", "I look.")
    assert [(call.name, call.text) for call in answer.calls] == [("add-up", "{}")]
    final = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>A"
    assert read(dialects.HARMONY, final) == WholeAnswer("A", "Hm.", ())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("free text", WholeAnswer("free text", "", ())),
        ("<|channel|>final", WholeAnswer("", "", ())),
        ("<|channel|>analysis<|channel|>final<|message|>A", WholeAnswer("A", "", ())),
        ("<|message|>A<|end|>", WholeAnswer("A", "", ())),
        ("<|start|>assistant<|start|>assistant<|channel|>final<|message|>A",
         WholeAnswer("A", "", ())),
        ("<|channel|>commentary to=functions.no<|message|>{}", WholeAnswer("{}", "", ())),
    ],
)  # fmt: skip
def test_bad_headers_of_harmony_lose_no_answer(text: str, answer: WholeAnswer) -> None:
    assert read(dialects.HARMONY, text) == answer


def test_calls_count_only_after_the_thought() -> None:
    text = f"<think>\nI may {HERMES_CALL}.\n</think>\n\n{HERMES_CALL}"
    answer = whole_answer(events_of(dialects.HERMES, [text], THOUGHT))
    assert answer.thoughts == f"I may {HERMES_CALL}."
    assert (answer.text, len(answer.calls)) == ("", 1)


def test_a_thought_may_have_begun_in_the_prompt_and_may_not_end() -> None:
    begun = whole_answer(events_of(dialects.HERMES, ["Hm.</think>A"], THOUGHT, is_thinking=True))
    assert begun == WholeAnswer("A", "Hm.", ())
    endless = whole_answer(events_of(dialects.HERMES, ["<think>Hm. <tool_call>"], THOUGHT))
    assert endless == WholeAnswer("", "Hm. <tool_call>", ())
    none = whole_answer(events_of(dialects.HERMES, ["  A</think>"], THOUGHT))
    assert none == WholeAnswer("  A</think>", "", ())


def test_arguments_come_piece_by_piece_and_are_whole_only_at_the_end() -> None:
    text = HERMES_CALL
    events = events_of(dialects.HERMES, list(text))
    pieces = [e.text for e in events if isinstance(e, ArgumentsDelta)]
    assert len(pieces) == len(CITY)
    for end in range(1, len(pieces)):
        with pytest.raises(json.JSONDecodeError):
            json.loads("".join(pieces[:end]))


PARTS = st.sampled_from(
    [
        *(text for _, text in ONE_CALL),
        *("<think>", "</think>", "\n", " ", "a", '"', "\\", "{", "}", "[", "]", ",", ";", ":"),
        *("<tool_call>", "</tool_call>", '{"name": "look", ', '"arguments": ', CITY, BRACES),
        *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "final", "[TOOL_CALLS]", "look"),
        *("<|python_tag|>", "<function=", "<parameter=", ">", "<arg_key>", "```", "functools"),
    ]
)
TEXTS = st.lists(PARTS, max_size=8).map("".join)
ALL = [dialect for _, dialect in dialects._BY_TEXTS] + [dialects.GENERIC]


@given(data=st.data())
@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: str(dialect.name))
def test_any_pieces_of_a_text_are_the_same_answer(dialect: Dialect, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    thought = data.draw(st.sampled_from([None, THOUGHT]))
    at_once = whole_answer(events_of(dialect, [text], thought))
    assert whole_answer(events_of(dialect, pieces, thought)) == at_once
    assert whole_answer(events_of(dialect, list(text), thought)) == at_once


@given(text=TEXTS)
@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: str(dialect.name))
def test_every_call_begins_once_and_ends(dialect: Dialect, text: str) -> None:
    open_calls: list[int] = []
    events = events_of(dialect, list(text))
    for event in events:
        if isinstance(event, CallStart):
            assert not open_calls
            open_calls.append(event.index)
        elif isinstance(event, ArgumentsDelta):
            assert open_calls == [event.index]
            assert event.text
        elif isinstance(event, CallEnd):
            assert open_calls.pop() == event.index
    assert not open_calls
    started = [event.index for event in events if isinstance(event, CallStart)]
    assert started == list(range(len(started)))
    assert all(call.text for call in whole_answer(events).calls)
