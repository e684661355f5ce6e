"""Bundles are checked by the headers of their members' files: sums, pairs, and every refusal."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from inference_api.bundle.check import Finding, Validation, check_bundle
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading import hub
from inference_api.loading.checkpoint import load_config
from inference_api.loading.drafting import heads_bytes
from inference_api.loading.files import read_headers
from inference_api.loading.memory import Footprint, scratch_bytes
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder
from inference_api.settings import Settings
from inference_api.settings.bundle_file import Bundle
from inference_api.settings.model import EMBEDDED_MODEL
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.tiny_models import make_model

GIB = 2**30
SETTINGS = Settings(user_rows=8)


@pytest.fixture
def folder(tiny_model: Tiny, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(copytree(tiny_model("llama"), tmp_path / "model"))


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a file of 8 bits."""
    file = tmp_path_factory.mktemp("quantised") / "embedded.gguf"
    make_gguf(EMBEDDED_MODEL, file, "Q8_0")
    return file


def bundle_of(*members: dict[str, Any], **keys: Any) -> Bundle:
    limits = {"version": 1, "memory_limit": GIB, "fast_memory_limit": GIB}
    return Bundle.model_validate({**limits, **keys, "experts": members})


def member(source: Path, name: str = "a", **keys: Any) -> dict[str, Any]:
    return {"name": name, "source": str(source), **keys}


def checked(*members: dict[str, Any], **keys: Any) -> Validation:
    return check_bundle(bundle_of(*members, **keys), SETTINGS)


def error_of(validation: Validation) -> Finding:
    [error] = [each for each in validation.validations if each.level == "ERROR"]
    assert not validation.valid
    return error


def loaded_bytes(source: Path, quantization: str, context: int | None) -> tuple[int, int]:
    """What the loader counts with: of weights, and of a row's cache."""
    options = EngineOptions(
        device="cpu", max_rows=1, quantization=quantization, max_seq_len=context
    )
    footprint = KernelRunner(source, options, packed=PackedFolder(Path("unused"))).footprint
    return footprint.weights_bytes, footprint.cache_bytes


def test_a_quantised_member_that_names_no_form_shares_the_8_bits_of_one_that_does(
    quantised: Path,
) -> None:
    alone = checked(member(quantised, quantisation="int8")).utilization
    both = checked(member(quantised), member(quantised, "b", quantisation="int8")).utilization
    assert alone is not None
    assert both is not None
    assert both.memory.need_bytes == alone.memory.need_bytes


@pytest.mark.slow
@pytest.mark.parametrize("quantisation", ["none", "auto", "file", "int8", "int4"])
@pytest.mark.parametrize("context", [None, 64])
def test_bytes_are_those_that_the_loader_counts_with(
    quantisation: str, context: int | None, tiny_model: Tiny, quantised: Path
) -> None:
    models = [tiny_model(name) for name in ("llama", "falcon-7b")]
    for source in (EMBEDDED_MODEL, quantised, *models):
        keys: dict[str, Any] = {
            "quantisation": quantisation,
            "context": context,
            "rows": {"min": 3},
        }
        validation = checked(member(source, **keys))
        assert validation.valid
        assert validation.utilization is not None
        [taken] = validation.utilization.experts
        weights, cache = loaded_bytes(source, quantisation, context)
        assert (taken.weights_bytes, taken.cache_bytes_per_row) == (weights, cache)
        assert taken.need_bytes == weights + 3 * cache
        scratch = scratch_bytes(load_config(source), SETTINGS.user_rows)
        assert validation.utilization.scratch_bytes == scratch
        assert validation.utilization.fast_memory.need_bytes == taken.need_bytes + scratch
        assert validation.utilization.memory.need_bytes == weights


def test_guaranteed_rows_have_a_whole_context_or_2048_tokens_each() -> None:
    long = Footprint(weights_bytes=0, page_bytes=100, num_pages=8192, rows=8, context_tokens=2**15)
    assert [long.guaranteed_pages(rows) for rows in (1, 16, 17)] == [1024, 1024, 17 * 64]
    short = replace(long, num_pages=8 * 20, context_tokens=640, log_bytes=7)
    assert [short.guaranteed_bytes(rows) for rows in (1, 3)] == [2007, 6021]


def test_pair_counts_both_models_and_is_told_to_be_compatible(tiny_model: Tiny) -> None:
    target, draft = tiny_model("llama"), tiny_model("qwen2")
    pair = {"name": "p", "target": {"source": str(target)}, "draft": {"source": str(draft)}}
    together = checked(pair, member(target, "t"), member(draft, "d"))
    assert together.valid
    assert together.utilization is not None
    both, *single = together.utilization.experts
    assert both.need_bytes == sum(each.need_bytes for each in single)
    assert together.utilization.memory.need_bytes == both.weights_bytes  # packed once
    [info] = [each for each in together.validations if each.expert == "p"]
    assert (info.level, info.reason) == ("INFO", "SpeculativeDecodingPairCompatible")
    assert info.message == f"p: {draft.name} can draft for {target.name}."


def test_draft_has_no_more_context_than_it_can_have(tiny_model: Tiny, folder: Path) -> None:
    edit(folder / "config.json", max_position_embeddings=32)
    target = tiny_model("llama")
    validation = checked(
        member(target, "p", draft={"source": str(folder)}), member(folder, "d"), member(target, "t")
    )
    assert validation.utilization is not None
    pair, draft, alone = validation.utilization.experts
    assert pair.cache_bytes_per_row == draft.cache_bytes_per_row + alone.cache_bytes_per_row


def test_heads_count_where_they_guess() -> None:
    plain, guessing = (
        checked(member(EMBEDDED_MODEL, speculation=each)).utilization for each in ("off", "medusa")
    )
    assert plain is not None
    assert guessing is not None
    heads = heads_bytes(EMBEDDED_MODEL / "medusa")
    assert heads > 0
    assert guessing.memory.need_bytes == plain.memory.need_bytes + heads


def test_sums_that_are_kept_are_told_with_their_bytes() -> None:
    validation = checked(member(EMBEDDED_MODEL))
    assert [(each.level, each.reason) for each in validation.validations] == [
        ("INFO", "RowsSufficient"),
        ("INFO", "MemorySufficient"),
        ("INFO", "FastMemorySufficient"),
    ]
    memory = validation.validations[1]
    assert memory.message == f"memory_limit: need {memory.need_bytes} bytes, limit {GIB}."
    assert memory.limit_bytes == GIB


def test_excess_of_memory_says_what_to_drop(tiny_model: Tiny) -> None:
    members = [member(EMBEDDED_MODEL, "big"), member(tiny_model("llama"), "small")]
    used = checked(*members).utilization
    assert used is not None
    need, over = used.memory.need_bytes, used.experts[1].weights_bytes + 1
    assert error_of(checked(*members, memory_limit=need - over)).model_dump() == {
        "level": "ERROR",
        "reason": "MemoryExceeded",
        "expert": None,
        "message": f"memory_limit: need {need} bytes, limit {need - over}, over by {over}; drop "
        f"big ({used.experts[0].weights_bytes}) or raise memory_limit.",
        "need_bytes": need,
        "limit_bytes": need - over,
    }


def test_pinned_members_have_to_leave_room_for_the_largest_other(tiny_model: Tiny) -> None:
    members = [
        member(tiny_model("llama"), "pinned", pinned=True),
        member(tiny_model("qwen2"), "other"),
        member(tiny_model("qwen3"), "third"),
    ]
    used = checked(*members).utilization
    assert used is not None
    pinned, other, third = (each.need_bytes for each in used.experts)
    need = pinned + max(other, third) + used.scratch_bytes
    assert used.fast_memory.need_bytes == need
    assert checked(*members, fast_memory_limit=need).valid
    error = error_of(checked(*members, fast_memory_limit=need - 1))
    assert error.reason == "FastMemoryExceeded"
    assert error.message.startswith(
        f"fast_memory_limit: need {need} bytes, limit {need - 1}, over by 1; drop "
    )


def test_member_that_cannot_be_loaded_alone_is_named(tiny_model: Tiny) -> None:
    members = [member(EMBEDDED_MODEL, "big"), member(tiny_model("llama"), "small")]
    used = checked(*members[1:]).utilization
    assert used is not None
    validation = checked(*members, fast_memory_limit=used.fast_memory.need_bytes)
    error = error_of(validation)
    assert (error.reason, error.expert) == ("FastMemoryExceeded", "big")
    assert error.message.startswith("big: fast_memory_limit: need ")
    assert validation.validations[-1].reason == "FastMemorySufficient"  # of the small one


def test_rows_that_all_need_are_bounded() -> None:
    error = error_of(checked(member(EMBEDDED_MODEL, rows={"min": 9})))
    assert error.message == (
        "rows.min: need 9 rows, limit USER_ROWS=8, over by 1; lower rows.min or raise USER_ROWS."
    )


def test_context_above_the_models_is_refused(tiny_model: Tiny) -> None:
    error = error_of(checked(member(tiny_model("llama"), "e", context=129)))
    assert (error.reason, error.expert) == ("ContextTooLong", "e")
    assert error.message == "e: context 129 > 128; lower it or leave it out."


def test_vocabularies_of_a_pair_have_to_be_one(folder: Path, tiny_model: Tiny) -> None:
    target = tiny_model("llama")
    pair = member(target, "p", draft={"source": str(EMBEDDED_MODEL)})
    error = error_of(checked(pair))
    assert error.reason == "VocabulariesDiffer"
    named = f"p: draft.source={EMBEDDED_MODEL} cannot draft for {target}: the vocabularies differ, "
    assert error.message.startswith(f"{named}first in token 0, which is ")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["t7"], ids["t8"] = ids["t8"], ids["t7"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    error = error_of(checked(member(target, "p", draft={"source": str(folder)})))
    assert error.message == (
        f"p: draft.source={folder} cannot draft for {target}: the vocabularies differ, first in "
        "token 7, which is 't8' there and 't7' here; name a model of the same family or unset "
        "draft.source."
    )


def test_recurrent_layers_draft_for_nobody(tiny_model: Tiny) -> None:
    target, draft = tiny_model("llama"), tiny_model("lfm2")
    error = error_of(checked(member(target, "p", draft={"source": str(draft)})))
    assert error.reason == "ArchitectureNotSupported"
    assert error.message.startswith(f"p: draft.source={draft} has recurrent layers, which forget")


def test_architectures_that_are_not_served_are_refused(folder: Path, tmp_path: Path) -> None:
    edit(folder / "config.json", model_type="mamba")
    error = error_of(checked(member(folder, "e")))
    assert error.message.startswith("e: model_type='mamba' in config.json is not supported; choose")
    make_model("llama", uneven := tmp_path / "uneven", intermediate_size=80)
    error = error_of(checked(member(uneven, "e")))
    assert error.reason == "ArchitectureNotSupported"
    assert error.message.startswith(
        "e: the kernels need weights with a multiple of 32 columns; these differ: "
    )
    assert "mlp.down_proj.weight (64, 80)" in error.message


def test_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    error = error_of(checked(member(tmp_path / "absent", "e")))
    assert (error.reason, error.expert) == ("SourceInvalid", "e")
    assert error.message == (
        f"e: source={tmp_path / 'absent'} is no folder; give the folder of a model, a GGUF file or "
        "a hub id, owner/name."
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\x10", "its header should have 16 bytes, at byte 0, and the file has 1"),
        (b"\xff" * 9, "its header should have 18446744073709551615 bytes, at byte 0"),
        (b"\x02" + bytes(7) + b"{{", "its header, at byte 8: Expecting property name"),
        (b"\x02" + bytes(7) + b"{}", "is damaged or incomplete"),
    ],
)
def test_damaged_weights_are_named_with_file_and_byte(
    folder: Path, content: bytes, fault: str
) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(content)
    error = error_of(checked(member(folder, "e")))
    assert error.message.startswith(f"e: {file} is damaged or incomplete (")
    assert fault in error.message


def test_weights_that_are_cut_say_where(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-10])
    error = error_of(checked(member(folder, "e")))
    size = len(content)
    assert (
        f"its tensors should end at byte {size}, and it ends at byte {size - 10}" in error.message
    )


def test_tensor_of_another_size_says_where(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"shape":[300,64]', b'"shape":[301,64]', 1))
    error = error_of(checked(member(folder, "e")))
    assert "bytes cannot be F32 of [301, 64], at byte " in error.message


def test_hub_id_is_checked_by_its_headers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = checked(member(folder))
    stored = read_headers([folder / "model.safetensors"], "llama")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(hub, "fetch", lambda model, patterns, setting: folder)
    monkeypatch.setattr(hub, "stored_tensors", lambda model: stored)
    assert checked(member(Path("owner/name"))) == local


def test_hub_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    error = error_of(checked(member(Path("owner/name"), "e")))
    assert error.message.startswith("e: source=owner/name is no folder here and cannot be fetched")


def test_source_of_several_members_is_told_of_each(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    validation = checked(member(folder, "a"), member(folder, "b"), member(EMBEDDED_MODEL, "c"))
    assert [each.expert for each in validation.validations if each.level == "ERROR"] == ["a", "b"]
    assert validation.utilization is not None
    assert [each.name for each in validation.utilization.experts] == ["c"]


def test_heads_that_are_asked_for_have_to_be_there(folder: Path, tmp_path: Path) -> None:
    error = error_of(checked(member(folder, "e", speculation="medusa")))
    assert error.message == (
        f"e: no Medusa heads in {folder}; correct medusa_heads, or set speculation: off."
    )
    heads = str(tmp_path / "absent")
    error = error_of(checked(member(folder, "e", speculation="auto", medusa_heads=heads)))
    assert error.reason == "HeadsNotFound"
    assert checked(member(folder, "e", speculation="auto")).valid


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
