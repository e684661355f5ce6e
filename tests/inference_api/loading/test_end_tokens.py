"""Every token that a model's files say an answer ends with, and those known to end one."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_api.loading import checkpoint
from inference_api.loading.end_tokens import END_TEXTS
from inference_api.loading.gguf import tokenizer as gguf_tokenizer
from inference_api.loading.tokenizer_files import eos_token_ids
from lab.models.random_model import SHAPES
from tests.inference_api.loading.gguf_copies import rewritten, small_gguf

VOCAB_SIZE = 40
ids = st.integers(0, VOCAB_SIZE - 1)
ID_FIELDS = st.one_of(ids, st.lists(ids, max_size=3))
EOS_FIELDS = st.one_of(
    ids.map(lambda number: f"t{number}"), ids.map(lambda number: {"content": f"t{number}"})
)


def numbers(field: Any) -> set[int]:
    """Those of an eos_token_id or an eos_token of either form."""
    if isinstance(field, dict):
        field = field["content"]
    if isinstance(field, str):
        return {int(field.removeprefix("t"))}
    return set(field) if isinstance(field, list) else {field}


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def write_tokenizer(folder: Path, added: list[dict[str, Any]]) -> None:
    vocabulary = {f"t{number}": number for number in range(VOCAB_SIZE)}
    write(folder, "tokenizer.json", {"model": {"vocab": vocabulary}, "added_tokens": added})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "config": ID_FIELDS,
            "text_config": ID_FIELDS,
            "generation_config.json": ID_FIELDS,
            "tokenizer_config.json": EOS_FIELDS,
            "special_tokens_map.json": EOS_FIELDS,
        },
    )
)
def test_whatever_file_of_a_folder_names_an_end_it_is_one(named: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), [])
        for file in named.keys() - {"config", "text_config"}:
            key = "eos_token_id" if file == "generation_config.json" else "eos_token"
            write(Path(folder), file, {key: named[file]})
        config = {
            "eos_token_id": named.get("config"),
            "text_config": {"eos_token_id": named.get("text_config")},
        }
        found = eos_token_ids(Path(folder), config)
    assert found == set().union(*map(numbers, named.values()))


texts = st.lists(st.sampled_from([*sorted(END_TEXTS), "<|user|>", "end"]), unique=True)


def expected_ends(special: list[str]) -> frozenset[str]:
    ends = END_TEXTS & set(special)
    return ends - {"<|end|>"} if "<|return|>" in ends else ends


@given(texts, texts)
def test_special_tokens_of_a_folder_that_are_known_to_end_answers_do(
    special: list[str], plain: list[str]
) -> None:
    plain = [text for text in plain if text not in special]
    added = [
        {"content": text, "id": number, "special": text in special}
        for number, text in enumerate([*plain, *special])
    ]
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), added)
        found = eos_token_ids(Path(folder), {})
    assert {added[number]["content"] for number in found} == expected_ends(special)


@given(texts, texts, st.lists(ids, min_size=3, max_size=3))
def test_control_tokens_of_a_gguf_file_that_are_known_to_end_answers_do(
    control: list[str], others: list[str], named: list[int]
) -> None:
    others = [text for text in others if text not in control]
    tokens = [*others, *control]
    kinds = [gguf_tokenizer.NORMAL, gguf_tokenizer.USER_DEFINED]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            *(kinds[number % 2] for number in range(len(others))),
            *[gguf_tokenizer.CONTROL] * len(control),
        ],
        "tokenizer.ggml.eos_token_id": named[0],
        "tokenizer.ggml.eot_token_id": named[1],
        "tokenizer.ggml.eom_token_id": named[2],
    }
    found = set(gguf_tokenizer.eos_token_ids(metadata))
    assert found == set(named) | {tokens.index(text) for text in expected_ends(control)}


def test_a_gguf_file_whose_chats_end_otherwise_than_its_texts_has_both_ends(tmp_path: Path) -> None:
    """As Gemma's files have it: they name <eos> alone, and a turn ends with <end_of_turn>."""
    ends, sound = {}, small_gguf(tmp_path)
    own = SHAPES["tiny"].vocab_size - 1
    for kind in (gguf_tokenizer.CONTROL, gguf_tokenizer.NORMAL):

        def change(metadata: dict[str, Any], kind: int = kind) -> None:
            metadata["tokenizer.ggml.tokens"][7] = "<end_of_turn>"
            metadata["tokenizer.ggml.token_type"][7] = kind

        file = rewritten(sound, tmp_path / f"{kind}.gguf", change)
        ends[kind] = checkpoint.load_config(file).eos_token_ids
    assert ends == {gguf_tokenizer.CONTROL: {own, 7}, gguf_tokenizer.NORMAL: {own}}
