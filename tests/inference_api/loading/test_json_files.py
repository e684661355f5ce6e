"""The files of a model's folder, which nobody has checked: bounded, and named when they fail."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from inference_api.errors import StartupError
from inference_api.loading import files
from inference_api.loading.json_files import MAX_JSON_BYTES, MAX_JSON_VALUES
from inference_api.loading.options import EngineOptions
from inference_api.text.tokens import load_tokenizer
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one

DEPTH = 100_000
DEEP = '{"a":' * DEPTH + "1" + "}" * DEPTH
SPARSE_BYTES = 3 * 1024**3


@pytest.fixture
def folder(tiny_model: Tiny, tmp_path: Path) -> Path:
    """A copy to spoil, in which every file is read."""
    made = Path(copytree(tiny_model("llama"), tmp_path / "model"))
    for name in ("config.json", "generation_config.json"):
        content = json.loads((made / name).read_text())
        content.pop("eos_token_id", None)
        (made / name).write_text(json.dumps(content))
    (made / "tokenizer_config.json").write_text('{"eos_token": "t2"}')
    index = {"weight_map": {"a": "model.safetensors"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


def check(folder: Path) -> list[str]:
    return check_one(folder, EngineOptions(device="cpu", max_rows=1))


FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
)


def test_a_sound_folder_has_no_faults(folder: Path) -> None:
    assert check(folder) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (DEEP, "nested too deep"),
        ('{"a":' + "[" * DEPTH, "nested too deep"),
        ("[1]", "not a JSON object"),
        ('{"a":[' + "[]," * (MAX_JSON_VALUES // 2 + 1) + "0]}", f"more than {MAX_JSON_VALUES}"),
        ('{"a":' + "9" * 5000 + "}", "cannot be read"),
        ('{"a": 1', "cannot be read"),
    ],
    ids=["deep", "deep and open", "list", "many values", "endless number", "cut short"],
)
def test_file_that_cannot_be_read_is_named(
    folder: Path, name: str, content: str, reason: str
) -> None:
    (folder / name).write_text(content)
    faults = check(folder)
    assert faults
    assert all(str(folder / name) in fault and reason in fault for fault in faults)


def test_deep_header_of_weights_is_named(folder: Path) -> None:
    header = DEEP.encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    [fault] = check(folder)
    assert "model.safetensors is damaged or incomplete" in fault
    assert "nested too deep" in fault


@pytest.mark.parametrize("name", [*FILES, "vocab.json", "chat_template.jinja"])
def test_file_too_large_to_read_is_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as stream:
        stream.truncate(SPARSE_BYTES)
    [fault] = check(folder)
    assert str(folder / name) in fault
    assert f"{SPARSE_BYTES} bytes, more than " in fault


JUNK: list[Any] = [
    *(None, "x", True, -1, 0, 2**64, 10**400, 1.5, math.nan, math.inf, {}, {"x": 1}),
    *(
        [],
        [0],
        ["x", "y"],
        [None, None],
        [math.nan, 0],
        [-1, 4],
        [0, 2**64],
        [10**400] * 2,
        [0] * 9,
    ),
]


def spoil_header(file: Path, spoil: Callable[[Any], object]) -> None:
    """Changes the header of a safetensors file, in place."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    spoil(header)
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + content[end:])


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("dtype", lambda _: "F64"),
        ("dtype", lambda _: ["F32"] * 9),
        ("shape", lambda shape: [float(size) for size in shape]),
        ("shape", lambda shape: [*shape, -1]),
        ("data_offsets", lambda offsets: [float(each) for each in offsets]),
        ("data_offsets", lambda offsets: [0, offsets[1] - offsets[0]]),  # another tensor's bytes
        ("data_offsets", lambda offsets: [offsets[0] + 4, offsets[1]]),
        *(
            (field, lambda _, junk=junk: junk)
            for field in ("dtype", "shape", "data_offsets")
            for junk in JUNK
        ),
    ],
)
def test_header_that_the_loader_could_not_use_is_refused_before_it_does(
    folder: Path, field: str, spoil: Callable[[Any], object]
) -> None:
    def spoil_one(header: dict[str, Any]) -> None:
        entry = header["model.layers.1.self_attn.q_proj.weight"]
        entry[field] = spoil(entry[field])

    spoil_header(folder / "model.safetensors", spoil_one)
    [fault] = check(folder)
    assert len(fault) < 500
    assert "self_attn.q_proj.weight" in fault or "model.safetensors is damaged" in fault


@pytest.mark.parametrize("junk", JUNK)
def test_entry_of_a_header_that_is_no_tensor_is_refused(folder: Path, junk: object) -> None:
    spoil_header(folder / "model.safetensors", lambda header: header.update(more=junk))
    [fault] = check(folder)
    assert "model.safetensors is damaged" in fault


def test_weights_cut_short_anywhere_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for length in [*range(12), *range(12, len(content), 1 + len(content) // 200)]:
        file.write_bytes(content[:length])
        [fault] = check(folder)
        assert "model.safetensors is damaged or incomplete" in fault


def test_stacks_of_more_experts_than_any_model_has_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stack takes few bytes, also of several files, and stands for thousands of tensors."""
    monkeypatch.setattr(files, "MAX_TENSORS", 5000)
    name = "model.layers.{}.mlp.experts.gate_up_proj"
    of_none = {"dtype": "F32", "shape": [1024, 2, 0], "data_offsets": [0, 0]}
    for number in range(3):
        header = json.dumps({name.format(number): of_none}).encode()
        content = len(header).to_bytes(8, "little") + header
        (folder / f"stack{number}.safetensors").write_bytes(content)
    index = {"weight_map": {str(n): f"stack{n}.safetensors" for n in range(3)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    [fault] = check(folder)
    assert "more than 5000 tensors" in fault


def test_header_longer_than_the_format_allows_is_not_read(folder: Path) -> None:
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write((MAX_JSON_BYTES + 1).to_bytes(8, "little"))
        stream.truncate(SPARSE_BYTES)
    [fault] = check(folder)
    assert "model.safetensors is damaged or incomplete" in fault


@pytest.mark.parametrize("name", [*FILES, "model.safetensors"])
def test_folder_or_link_to_itself_in_the_place_of_a_file_is_no_traceback(
    folder: Path, name: str
) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    as_folder = check(folder)
    (folder / name).rmdir()
    (folder / name).symlink_to(name)
    as_loop = check(folder)
    for faults in (as_folder, as_loop):
        assert all(fault.endswith(".") for fault in faults)
        if name in ("config.json", "tokenizer.json", "model.safetensors"):
            assert any(name in fault for fault in faults)


@pytest.mark.parametrize(
    "model", ["x" * 5000, "a\0b", "~nobody-of-this-name/model", "/proc/1/root/x"]
)
def test_name_of_a_model_that_cannot_be_a_path_is_a_fault(model: str) -> None:
    [fault] = check_one(model, EngineOptions(device="cpu", max_rows=1))
    assert fault.startswith("MODEL=")


UNKNOWN_TOKEN = {"SpecialToken": {"id": "<s>", "type_id": 0}}  # at which the library panics


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("pre_tokenizer", json.loads('{"a":' * 500 + "1" + "}" * 500)),
        (
            "post_processor",
            {
                "type": "TemplateProcessing",
                "single": [UNKNOWN_TOKEN, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            },
        ),
    ],
)
def test_tokenizer_that_only_its_library_refuses_is_a_fault(
    folder: Path, part: str, content: object
) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, part: content}))
    assert check(folder) == []
    with pytest.raises(StartupError, match="the tokenizer cannot be loaded"):
        load_tokenizer(folder, frozenset())


def test_tokenizer_with_ids_that_are_no_numbers_is_a_fault(folder: Path) -> None:
    tokenizer = {"model": {"type": "WordLevel", "vocab": {"a": 0, "t2": "2"}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    [fault] = check(folder)
    assert "tokenizer.json is no tokenizer of the tokenizers library" in fault
