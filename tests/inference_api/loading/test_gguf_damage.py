"""Files that are cut short, altered or not understood: refused by name, and never a crash."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common import gguf_header
from inference_api.engine.cuda.parameters import load_torch_parameters
from inference_api.errors import StartupError
from inference_api.loading import checkpoint
from inference_api.loading.files import read_headers, shape_faults, weight_files
from inference_api.loading.gguf import tokenizer as gguf_tokenizer
from inference_api.loading.gguf.config import llama3_rope
from inference_api.loading.gguf.container import read_container
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.gguf.tokenizer import MAX_TOKENS, tokenizer_json, vocabulary
from inference_api.loading.options import EngineOptions
from inference_api.text.tokens import load_tokenizer
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.loading.gguf_copies import Metadata, rewritten, small_gguf

QUICK = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="session")
def sound(tiny_model: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file with a matrix of every form."""
    file = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    make_gguf(tiny_model("llama"), file, "Q4_0")
    return file


def load(model: Path) -> None:
    config = checkpoint.load_config(model)
    files = weight_files(model)
    faults = shape_faults(read_headers(files, config.tensor_names), config)
    if faults:
        raise StartupError(faults)
    load_torch_parameters(files, config, torch.device("cpu"), torch.float32)


def fault(model: Path) -> str:
    with pytest.raises(StartupError) as caught:
        load(model)
    return " ".join(caught.value.faults)


def assert_loads_or_is_refused(model: Path) -> None:
    """With parameters of the right shapes, or with faults that say something."""
    try:
        load(model)
    except StartupError as refusal:
        faults = refusal.faults
    else:
        faults = ("nothing that shows",)
    assert all(faults)


def test_sound_file_loads(sound: Path, tmp_path: Path) -> None:
    load(sound)
    load(rewritten(sound, tmp_path / "copy.gguf"))
    assert len(read_gguf(sound).tensors) > 10


def test_truncation_anywhere_is_refused(sound: Path, tmp_path: Path) -> None:
    content = sound.read_bytes()
    file = tmp_path / "cut.gguf"
    data_begins = GGUFReader(sound).data_offset
    for length in [*range(0, data_begins, 61), *range(data_begins, len(content) - 32, 2003)]:
        file.write_bytes(content[:length])
        assert "cut.gguf" in fault(file)


def test_bytes_after_the_end_are_refused(sound: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.gguf"
    file.write_bytes(sound.read_bytes() + bytes(4096))
    assert "its tensors end at" in fault(file)


@given(data=st.data())
@QUICK
def test_altered_header_is_refused_or_harmless(
    sound: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(sound.read_bytes())
    last = GGUFReader(sound).data_offset - 1
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, last))] ^= data.draw(st.integers(1, 255))
    file = tmp_path / "altered.gguf"
    file.write_bytes(content)
    read_gguf.__globals__["_read"].cache_clear()
    assert_loads_or_is_refused(file)


@given(data=st.data())
@QUICK
def test_altered_safetensors_header_is_refused_or_harmless(
    tiny_model: Tiny, tmp_path: Path, data: st.DataObject
) -> None:
    folder = tiny_model("llama")
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    content = bytearray((folder / "model.safetensors").read_bytes())
    last = 8 + int.from_bytes(content[:8], "little") - 1
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, last))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "model.safetensors").write_bytes(content)
    assert_loads_or_is_refused(tmp_path)


def test_unknown_quantisation_type_is_named(sound: Path, tmp_path: Path) -> None:
    content = bytearray(sound.read_bytes())
    field = next(t for t in GGUFReader(sound).tensors if t.name == "blk.1.ffn_up.weight").field
    at = field.offset + sum(part.nbytes for part in field.parts[:4])
    for number, shown in ((999, "999"), (GGMLQuantizationType.Q8_1, "Q8_1")):
        content[at : at + 4] = int(number).to_bytes(4, "little")
        file = tmp_path / f"{number}.gguf"
        file.write_bytes(content)
        assert f"tensor blk.1.ffn_up.weight has quantisation type {shown}" in fault(file)


def test_list_that_would_fill_memory_is_refused(with_tokenizer: Path, tmp_path: Path) -> None:
    content = bytearray(with_tokenizer.read_bytes())
    field = GGUFReader(with_tokenizer).fields["tokenizer.ggml.tokens"]
    at = field.offset + sum(part.nbytes for part in field.parts[:4])
    content[at : at + 8] = (2**40).to_bytes(8, "little")
    file = tmp_path / "endless.gguf"
    file.write_bytes(content)
    assert f"a list of {2**40} values" in fault(file)


def test_values_of_lists_take_little_memory_each(tmp_path: Path) -> None:
    count = 100_000
    texts = b"".join(struct.pack("<Q", 6) + b"%06d" % number for number in range(count))
    numbers = np.arange(count, dtype=np.float32).tobytes()
    for kind, values in ((gguf.GGUFValueType.STRING, texts), (gguf.GGUFValueType.FLOAT32, numbers)):
        listed = struct.pack("<IQ", kind, count) + values
        file = with_metadata(tmp_path / "list.gguf", gguf.GGUFValueType.ARRAY, listed)
        tracemalloc.start()
        [value] = read_container(file).metadata.values()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(value) == count
        assert peak_bytes < 100 * count + 4 * 1024**2


def with_metadata(file: Path, kind: int, value: bytes) -> Path:
    """A file of one value of metadata and no tensors."""
    key = b"key"
    head = struct.pack("<IIQQ", gguf.GGUF_MAGIC, gguf.GGUF_VERSION, 0, 1)
    file.write_bytes(head + struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value)
    return file


def test_lists_of_lists_are_refused_before_they_are_entered(tmp_path: Path) -> None:
    nested = struct.pack("<IQ", gguf.GGUFValueType.ARRAY, 1) * 100_000
    file = with_metadata(tmp_path / "nested.gguf", gguf.GGUFValueType.ARRAY, nested)
    assert "nested.gguf is damaged or incomplete (key is a list of lists" in fault(file)


def test_text_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    text = struct.pack("<Q", 2**31)
    file = with_metadata(tmp_path / "long.gguf", gguf.GGUFValueType.STRING, text)
    with file.open("ab") as stream:
        stream.truncate(3 * 1024**3)
    assert f"{2**31} bytes of metadata or names up to byte" in fault(file)


def test_texts_that_would_fill_memory_together_are_refused(
    with_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = read_container(with_tokenizer).begin
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", begin // 2)
    read_gguf.__globals__["_read"].cache_clear()
    assert f"they may end at {begin // 2} at most" in fault(with_tokenizer)


def test_endless_dimensions_are_refused(sound: Path, tmp_path: Path) -> None:
    content = bytearray(sound.read_bytes())
    field = next(t for t in GGUFReader(sound).tensors if t.name == "blk.1.ffn_up.weight").field
    at = field.offset + sum(part.nbytes for part in field.parts[:2])
    content[at : at + 4] = (2**31).to_bytes(4, "little")
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert f"blk.1.ffn_up.weight has {2**31} dimensions" in fault(file)


def test_file_for_processors_of_another_byte_order_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.gguf"
    file.write_bytes(b"GGUF" + struct.pack(">IQQ", gguf.GGUF_VERSION, 0, 0) + bytes(64))
    assert "little-endian processors; choose another file" in fault(file)


@pytest.mark.parametrize(
    ("counts", "expected"), [((0, 2**40), f"{2**40} entries"), ((2**40, 0), f"{2**40} tensors")]
)
def test_counts_are_bounded_before_anything_is_read(
    counts: tuple[int, int], expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "many.gguf"
    file.write_bytes(struct.pack("<IIQQ", gguf.GGUF_MAGIC, gguf.GGUF_VERSION, *counts) + bytes(64))
    assert expected in fault(file)


def test_layer_with_an_endless_number_is_refused(sound: Path, tmp_path: Path) -> None:
    def renamed(tensors: dict[str, Any]) -> None:
        tensors[f"blk.{'9' * 5000}.attn_q.weight"] = tensors.pop("blk.1.attn_q.weight")

    assert "should not have: blk.999" in fault(
        rewritten(sound, tmp_path / "model.gguf", tensors=renamed)
    )


@pytest.fixture(scope="session")
def with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gguf(tmp_path_factory.mktemp("small"))


def set_values(**changes: Any) -> Callable[[Metadata], None]:
    """Keys with `__` for a dot; None removes one."""

    def change(metadata: Metadata) -> None:
        for name, value in changes.items():
            metadata[name.replace("__", ".")] = value
        for name in [key for key, value in metadata.items() if value is None]:
            del metadata[name]

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_values(general__architecture="mamba"), "architecture 'mamba'"),
        (set_values(llama__block_count=3), "block_count=3, but its tensors make 2 layers"),
        (set_values(llama__block_count=2**31), "block_count=2147483648"),
        (set_values(llama__attention__head_count=None), "num_attention_heads=None"),
        (set_values(llama__attention__head_count=0), "num_attention_heads=0"),
        (set_values(llama__embedding_length=96), "do not fit"),
        (set_values(llama__feed_forward_length=128), "blk.0.ffn_gate.weight is [96, 64]"),
        (set_values(llama__rope__dimension_count=8), "partial_rotary_factor=0.5"),
        (set_values(llama__rope__scaling__type="longrope"), "rope_type='longrope'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metadata_that_does_not_fit_is_named(
    change: Callable[[Metadata], None], expected: str, sound: Path, tmp_path: Path
) -> None:
    assert expected in fault(rewritten(sound, tmp_path / "model.gguf", change))


def test_tensors_that_lack_or_are_not_understood_are_named(sound: Path, tmp_path: Path) -> None:
    missing = rewritten(
        sound, tmp_path / "a.gguf", tensors=lambda tensors: tensors.pop("blk.1.attn_k.weight")
    )
    assert "lacks the tensors blk.1.attn_k.weight" in fault(missing)

    def with_experts(tensors: dict[str, Any]) -> None:
        tensors["blk.0.ffn_gate_inp.weight"] = tensors["blk.0.attn_norm.weight"]

    experts = rewritten(sound, tmp_path / "b.gguf", tensors=with_experts)
    assert "should not have: blk.0.ffn_gate_inp.weight" in fault(experts)


def test_rope_factors_of_another_kind_are_refused(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"rope_freqs.weight is no llama3 scaling"):
        llama3_rope(np.linspace(1, 9, 8), 10_000.0)


def test_weights_that_are_no_numbers_are_named(sound: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        data, kind = tensors["blk.0.attn_q.weight"]
        data = data.copy()
        data[3, :2] = 0x00, 0x7E  # a scale that is NaN
        tensors["blk.0.attn_q.weight"] = data, kind

    file = rewritten(sound, tmp_path / "model.gguf", tensors=spoil)
    assert "layers.0.self_attn.q_proj.weight cannot be loaded: it has weights that" in fault(file)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_values(tokenizer__ggml__model="bert"), "tokenizer.ggml.model='bert'"),
        (set_values(tokenizer__ggml__pre="default"), "tokenizer.ggml.pre='default'"),
        (set_values(tokenizer__ggml__tokens=["a", "a"]), "no list of different tokens"),
        (set_values(tokenizer__ggml__tokens=[""] * (MAX_TOKENS + 1)), f"more than {MAX_TOKENS}"),
        (set_values(tokenizer__ggml__merges=None), "no list of merges"),
        (set_values(tokenizer__ggml__token_type=[1, 1]), "not one type for each token"),
        (set_values(tokenizer__ggml__model="llama"), "not one score for each token"),
        (
            set_values(tokenizer__ggml__model="llama", tokenizer__ggml__scores=1),
            "not one score for each token",
        ),
        (
            set_values(
                tokenizer__ggml__model="llama",
                tokenizer__ggml__tokens=["a" * 257],
                tokenizer__ggml__scores=[0.0],
            ),
            "has one of more than 256 characters",
        ),
        (set_values(tokenizer__ggml__pre=["a"]), "tokenizer.ggml.pre=['a']"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tokenizer_that_cannot_be_read_is_a_fault_of_the_model(
    change: Callable[[Metadata], None], expected: str, with_tokenizer: Path, tmp_path: Path
) -> None:
    file = rewritten(with_tokenizer, tmp_path / "model.gguf", change)
    [found] = check_one(file, EngineOptions(device="cpu", max_rows=1))
    assert expected in found
    with pytest.raises(StartupError):
        vocabulary(read_gguf(file).file.metadata)


def test_pieces_that_join_in_more_ways_than_any_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A piece of n characters has up to n - 1 merges."""
    monkeypatch.setattr(gguf_tokenizer, "MAX_MERGES", 1000)
    pieces = ["a" * length for length in range(1, 64)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * len(pieces),
    }
    with pytest.raises(StartupError, match="join in more than 1000 ways"):
        tokenizer_json(metadata)


def test_sentencepiece_tokenizer(with_tokenizer: Path, tmp_path: Path) -> None:
    """Pieces are joined by their scores, unknown characters become bytes, and spaces come back."""
    special = ["<unk>", "<s>", "</s>"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "lo"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    tokens = special + in_bytes + pieces
    change = set_values(
        tokenizer__ggml__model="llama",
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__scores=scores,
        tokenizer__ggml__token_type=[2, 3, 3] + [6] * 256 + [1] * len(pieces),
        tokenizer__ggml__bos_token_id=1,
        tokenizer__ggml__eos_token_id=2,
        tokenizer__ggml__unknown_token_id=0,
        tokenizer__ggml__add_bos_token=True,
    )
    file = rewritten(with_tokenizer, tmp_path / "model.gguf", change)
    assert checkpoint.load_config(file).eos_token_ids == {2}
    tokenizer = load_tokenizer(file, frozenset({2}))
    ids = tokenizer.encode("hello lo é")
    assert [tokens[number] for number in ids] == [
        "<s>",
        "▁hello",
        "▁",
        "lo",
        "▁",
        "<0xC3>",
        "<0xA9>",
    ]
    assert tokenizer.decode(ids) == "hello lo é"


def test_folder_of_several_files_asks_for_a_name(sound: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(sound.read_bytes())
    with pytest.raises(StartupError, match=r"several GGUF files \(a.gguf, b.gguf\); name one"):
        checkpoint.locate(str(tmp_path))
