"""Recognises how a model writes calls and thoughts from the text of its chat template."""

from dataclasses import dataclass, replace
from typing import Literal

from inference_api.tools import formats, gemma, harmony, xml_formats
from inference_api.tools.answers import Thought
from inference_api.tools.formats import Read

DialectName = Literal[
    "harmony", "deepseek", "deepseek-fenced", "kimi", "glm", "seed", "qwen-coder", "gemma", "phi",
    "granite", "hunyuan", "nemotron", "hermes", "llama", "mistral", "mistral-args", "generic",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model writes calls and thoughts. `markers` that are special tokens are kept in the
    text; `stops` end the answer besides the tokenizer's own stop tokens."""

    name: DialectName
    read: Read
    markers: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    thought: Thought | None = None
    one_call_per_turn: bool = False
    """Whether the template accepts only one call in a message, so that only one is allowed."""
    words: frozenset[str] = frozenset()  # all words in the template: it reads no other options
    named_roles: frozenset[str] = frozenset()  # roles whose names the template writes


THOUGHTS = (
    Thought("<think>", "</think>"),
    Thought("<seed:think>", "</seed:think>"),
    Thought("[THINK]", "[/THINK]"),
    Thought("<|channel>", "<channel|>", label="thought"),
)
TAGS = ("<tool_call>", "</tool_call>")

HARMONY = Dialect(
    "harmony", harmony.harmony, harmony.MARKERS, ("<|return|>", "<|call|>"), one_call_per_turn=True
)
DEEPSEEK = Dialect(
    "deepseek",
    formats.deepseek,
    (formats.BEGIN_ALL, formats.BEGIN, formats.SEPARATOR, formats.END, formats.END_ALL),
)
DEEPSEEK_FENCED = replace(DEEPSEEK, name="deepseek-fenced")
KIMI = Dialect("kimi", formats.kimi, formats.KIMI_MARKERS)
GLM = Dialect(
    "glm",
    xml_formats.glm,
    (*TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ("<|observation|>", "<|user|>"),
)
SEED = Dialect("seed", xml_formats.seed, xml_formats.SEED_TAGS)
QWEN_CODER = Dialect("qwen-coder", xml_formats.qwen_coder, TAGS)
GEMMA = Dialect("gemma", gemma.gemma, gemma.MARKERS, ("<|tool_response>",))
PHI = Dialect("phi", formats.phi, ("<|tool_call|>", "<|/tool_call|>"))
GRANITE = Dialect("granite", formats.granite, ("<|tool_call|>", *TAGS))
HUNYUAN = Dialect("hunyuan", formats.hunyuan, formats.HUNYUAN_TAGS)
NEMOTRON = Dialect("nemotron", formats.nemotron, formats.NEMOTRON_TAGS)
HERMES = Dialect("hermes", formats.hermes, TAGS)
LLAMA = Dialect(
    "llama", formats.llama, (formats.PYTHON_TAG,), ("<|eom_id|>",), one_call_per_turn=True
)
MISTRAL = Dialect("mistral", formats.mistral, ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"))
MISTRAL_ARGS = replace(MISTRAL, name="mistral-args")
GENERIC = Dialect("generic", formats.generic, TAGS)

# The first dialect whose texts are all in the template is used.
_BY_TEXTS: tuple[tuple[tuple[str, ...], Dialect], ...] = (
    (("<|channel|>",), HARMONY),
    ((formats.BEGIN_ALL, "```json"), DEEPSEEK_FENCED),
    ((formats.BEGIN_ALL,), DEEPSEEK),
    (formats.KIMI_MARKERS[:1], KIMI),
    (("<arg_key>",), GLM),
    (xml_formats.SEED_TAGS[:1], SEED),
    (("<function=", "<parameter="), QWEN_CODER),
    ((gemma.BEGIN,), GEMMA),
    (("<|tool_call|>", "<|tool|>"), PHI),
    (("<|tool_call|>",), GRANITE),
    (formats.HUNYUAN_TAGS, HUNYUAN),
    (formats.NEMOTRON_TAGS, NEMOTRON),
    (("<tool_call>",), HERMES),
    (("<|start_header_id|>", "ipython"), LLAMA),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL),
)


def dialect_of(template: str | None) -> Dialect:
    text = template or ""
    return next((d for texts, d in _BY_TEXTS if all(each in text for each in texts)), GENERIC)


def thought_of(template: str | None) -> Thought | None:
    text = template or ""
    return next(
        (thought for thought in THOUGHTS if thought.end in text or thought.begin in text), None
    )
