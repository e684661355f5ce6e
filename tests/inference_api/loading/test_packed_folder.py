"""Packed files that are sound, stale, damaged, cut short, fought over, and not to be had."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.loading.checkpoint import load_config
from inference_api.loading.files import weight_files
from inference_api.loading.packing import files as packed_files
from inference_api.loading.packing import folder as packed_folder
from inference_api.loading.packing import hashes as source_hashes
from inference_api.loading.packing import pages
from inference_api.loading.packing.files import PackedModel, read_packed
from inference_api.loading.packing.folder import PackedFolder
from inference_api.loading.packing.layout import CHECKSUMS_FROM, UnusablePackedFile
from inference_api.loading.weights import Packing, Parameters, load_parameters
from lab.kit.servers import TIMEOUT_S
from tests.inference_api.conftest import Tiny

PACKING = Packing(Kernels(1), 8)

# A process that loads a model; what it prints and waits for is up to what is put before it.
LOAD = """
import logging, resource, sys, time
from pathlib import Path
from inference_api.loading.packing import folder as packed_folder
from inference_api.loading.checkpoint import load_config
from inference_api.loading.packing.files import PackedModel
from inference_api.loading.files import weight_files
from inference_api.kernels.library import Kernels
from inference_api.loading.weights import Packing

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
source, target = map(Path, sys.argv[1:])
model = PackedModel("m", weight_files(source), load_config(source), "float32", 8)

def wait(word):
    print(word, flush=True)
    sys.stdin.readline()
"""
PACK_SLOWLY = """
is_first = True
def pause():
    global is_first
    if is_first:
        is_first = False
        wait("packing")
from inference_api.loading.packing import hashes as source_hashes
packed_folder.PackedFolder(target).has(model)
folder = packed_folder.PackedFolder(target, pause=pause)
folder._sources._pause = lambda: None
folder.load(model, Packing(Kernels(1), 8))
"""
PACK_BESIDE = """
sleep = time.sleep
def tell(seconds):
    print("waiting", flush=True)
    sleep(seconds)
packed_folder.time.sleep = tell
packed_folder.PackedFolder(target).load(model, Packing(Kernels(1), 8))
"""
PACK_WITHOUT_ROOM = """
target.mkdir()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    packed_folder.PackedFolder(target).load(model, Packing(Kernels(1), 8))
except packed_folder.StartupError as error:
    print(error.faults[0])
"""


@pytest.fixture
def source(tiny_model: Tiny, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(copytree(tiny_model("llama-tied"), tmp_path / "source"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "packed"


def model_in(source: Path) -> PackedModel:
    return PackedModel("m", weight_files(source), load_config(source), "float32", 8)


def numbers(parameters: Parameters) -> dict[str, bytes]:
    tensors = {name: tensor.tobytes() for name, tensor in parameters.tensors.items()}
    return tensors | {name: weight.blocks.tobytes() for name, weight in parameters.packed.items()}


def read_numbers(model: PackedModel) -> dict[str, bytes]:
    """By reading the model's own files."""
    return numbers(load_parameters(model.files, model.config, model.dtype, PACKING))


def written(path: Path) -> tuple[int, int]:
    """Which file it is and when it was written; reading changes neither."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def only_file(target: Path) -> Path:
    [file] = target.glob("*.hearth")
    return file


def pack(folder: PackedFolder, model: PackedModel) -> None:
    folder.load(model, Packing(PACKING.kernels, model.bits))


def faults(target: Path, model: PackedModel) -> list[str]:
    """What is wrong with the only packed file, read to its end."""
    file = only_file(target)
    try:
        read_packed(file, file.stem, model.layout, set(), lambda: None)
    except UnusablePackedFile as fault:
        return [str(fault)]
    return []


def edit(file: Path, at_byte: int, change: Callable[[bytes], bytes]) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:at_byte] + change(content[at_byte:]))


def flip(rest: bytes) -> bytes:
    return bytes([rest[0] ^ 0xFF]) + rest[1:]


def test_what_is_packed_is_what_is_read(source: Path, target: Path) -> None:
    model = model_in(source)
    folder = PackedFolder(target)
    assert not folder.has(model)
    assert numbers(folder.load(model, PACKING)) == read_numbers(model)
    assert folder.has(model)
    assert faults(target, model) == []
    before = written(only_file(target))
    assert numbers(PackedFolder(target).load(model, PACKING)) == read_numbers(model)
    assert written(only_file(target)) == before


def test_file_is_as_long_as_foreseen_and_its_tensors_are_aligned(
    source: Path, target: Path
) -> None:
    model = model_in(source)
    pack(PackedFolder(target), model)
    assert only_file(target).stat().st_size == model.layout.file_bytes
    assert model.layout.begin % 4096 == 0
    assert all(each.begin % 64 == 0 for each in model.layout.tensors)


def test_those_of_one_key_share_memory_until_none_is_held(source: Path, target: Path) -> None:
    folder, model = PackedFolder(target), model_in(source)
    first, second = (folder.load(model, PACKING) for _ in range(2))
    name = next(iter(first.packed))
    assert np.shares_memory(first.packed[name].blocks, second.packed[name].blocks)
    assert len(folder._memories) == 1
    del first
    assert len(folder._memories) == 1
    del second
    assert len(folder._memories) == 0


def test_each_form_has_a_file_of_its_own_and_sources_are_hashed_once(
    source: Path, target: Path
) -> None:
    model = model_in(source)
    folder = PackedFolder(target)
    for form in (model, replace(model, bits=4), replace(model, dtype="bfloat16")):
        pack(folder, form)
    assert len(list(target.glob("*.hearth"))) == 3
    assert len(list(target.glob("*.source"))) == 1


def test_same_weights_elsewhere_have_the_same_file(source: Path, target: Path) -> None:
    folder = PackedFolder(target)
    pack(folder, model_in(source))
    moved = model_in(Path(copytree(source, source.parent / "moved")))
    assert not folder.has(moved)  # nobody knows before they are hashed
    pack(folder, moved)
    only_file(target)
    assert folder.has(moved)


def test_changed_weights_are_packed_anew(source: Path, target: Path) -> None:
    folder = PackedFolder(target)
    pack(folder, model_in(source))
    file = source / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] *= 2
    save_file(tensors, file)
    changed = model_in(source)
    assert not folder.has(changed)
    assert numbers(folder.load(changed, PACKING)) == read_numbers(changed)
    assert len(list(target.glob("*.hearth"))) == 2


def test_beginning_of_a_file_is_looked_at_whatever_its_time_says(
    source: Path, target: Path
) -> None:
    folder, file = PackedFolder(target), source / "model.safetensors"
    pack(folder, model_in(source))
    state = file.stat()
    with file.open("r+b") as stream:
        stream.seek(state.st_size - 1)
        stream.write(b"\x11")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert not folder.has(model_in(source))


def test_file_that_has_long_been_as_it_is_is_looked_at_again_once_it_changes(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_hashes, "SETTLED_NS", 0)
    folder, file = PackedFolder(target), source / "model.safetensors"
    pack(folder, model_in(source))
    state = file.stat()
    assert folder.has(model_in(source))
    while file.stat().st_ctime_ns == state.st_ctime_ns:  # as coarse as the system's clock
        with file.open("r+b") as stream:
            stream.seek(state.st_size - 1)
            stream.write(b"\x11")
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert not folder.has(model_in(source))


def test_checksums_of_a_file_are_not_compared_by_who_has_just_made_it(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PackedFolder(target)
    pack(folder, model_in(source))

    def refuse(numbers: memoryview, crc: int = 0) -> int:
        raise AssertionError("it is read once more")

    monkeypatch.setattr(packed_files, "crc32", refuse)
    folder.load(model_in(source), PACKING)
    with pytest.raises(AssertionError, match="once more"):
        PackedFolder(target).load(model_in(source), PACKING)


def test_new_time_of_the_same_weights_packs_nothing(source: Path, target: Path) -> None:
    folder = PackedFolder(target)
    pack(folder, model_in(source))
    packed = written(only_file(target))
    os.utime(source / "model.safetensors", (1, 1))
    folder.load(model_in(source), PACKING)
    assert written(only_file(target)) == packed


def test_weights_that_change_while_they_are_packed_are_refused(source: Path, target: Path) -> None:
    file, model = source / "model.safetensors", model_in(source)
    num_pauses = 0

    def change() -> None:
        nonlocal num_pauses
        num_pauses += 1
        if num_pauses == 2:  # after the file was hashed and a tensor packed
            edit(file, file.stat().st_size - 1, flip)

    with pytest.raises(StartupError, match="m changes while it is packed"):
        PackedFolder(target, pause=change).load(model, PACKING)
    assert not list(target.glob("*.hearth"))
    assert not list(target.glob("*.draft"))


def test_every_byte_of_the_head_matters(source: Path, target: Path) -> None:
    model = model_in(source)
    pack(PackedFolder(target), model)
    file = only_file(target)
    with file.open("r+b", buffering=0) as stream:
        crcs = model.layout.read_crcs(stream.fileno(), file.stem)
        for at_byte in range(model.layout.begin):
            [byte] = os.pread(stream.fileno(), 1, at_byte)
            os.pwrite(stream.fileno(), bytes([byte ^ (1 << at_byte % 8)]), at_byte)
            with pytest.raises(UnusablePackedFile, match="at byte"):
                model.layout.read_crcs(stream.fileno(), file.stem)
            os.pwrite(stream.fileno(), bytes([byte]), at_byte)
        assert model.layout.read_crcs(stream.fileno(), file.stem) == crcs


@pytest.mark.parametrize("at_byte", [0, 8, CHECKSUMS_FROM])
def test_damaged_head_is_named_and_packed_anew(
    at_byte: int, source: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_in(source)
    pack(PackedFolder(target), model)
    edit(only_file(target), at_byte, flip)
    fault = "its head is damaged, or of other weights or another form, at byte 0"
    [named] = faults(target, model)
    assert fault in named
    with caplog.at_level(logging.WARNING):
        assert numbers(PackedFolder(target).load(model, PACKING)) == read_numbers(model)
    assert fault in caplog.text
    assert faults(target, model) == []


def test_header_of_another_model_is_refused(source: Path, target: Path, tiny_model: Tiny) -> None:
    model, folder = model_in(source), PackedFolder(target)
    pack(folder, model)
    own = only_file(target)
    own.unlink()
    for other in (replace(model, bits=4), model_in(tiny_model("llama"))):
        pack(folder, other)
        only_file(target).rename(own)
        [named] = faults(target, model)
        assert "of other weights or another form" in named or "bytes and not" in named
        own.unlink()


def test_damaged_weights_are_named_and_packed_anew(
    source: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_in(source)
    pack(PackedFolder(target), model)
    file = only_file(target)
    for each in (model.layout.tensors[0], model.layout.tensors[-1]):
        for at_byte in (each.begin, each.end - 1):
            edit(file, at_byte, flip)
            fault = f"{each.name} does not match its checksum, at byte {each.begin}"
            [named] = faults(target, model)
            assert fault in named
            with caplog.at_level(logging.WARNING):
                parameters = PackedFolder(target).load(model, PACKING)
            assert numbers(parameters) == read_numbers(model)
            assert fault in caplog.text
            caplog.clear()


@pytest.mark.parametrize("part", ["nothing", "head", "tensors", "last", "more"])
def test_file_of_another_length_is_named_and_packed_anew(
    part: str, source: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_in(source)
    pack(PackedFolder(target), model)
    layout = model.layout
    length = {
        "nothing": 0,
        "head": layout.begin - 1,
        "tensors": layout.begin,
        "last": layout.file_bytes - 1,
        "more": layout.file_bytes + 1,
    }[part]
    os.truncate(only_file(target), length)
    [named] = faults(target, model)
    assert f"at byte {length}" in named
    with caplog.at_level(logging.WARNING):
        parameters = PackedFolder(target).load(model, PACKING)
    assert numbers(parameters) == read_numbers(model)
    assert f"at byte {length}" in caplog.text


def test_slices_are_paused_after(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_in(source)
    pack(PackedFolder(target), model)
    monkeypatch.setattr(pages, "SLICE_BYTES", 16_384)
    pauses: list[None] = []
    folder = PackedFolder(target, lambda: pauses.append(None))
    folder.load(model, PACKING)  # with its checksums
    pauses.clear()
    folder.load(model, PACKING)
    assert len(pauses) == -(-model.layout.file_bytes // 16_384)


def test_locked_file_is_not_waited_for_without_end(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_folder, "LOCK_TIMEOUT_S", 0.0)
    folder, model = PackedFolder(target), model_in(source)
    with (
        folder._locked(folder._key(model)),
        pytest.raises(StartupError, match="set another PACKED_FOLDER"),
    ):
        PackedFolder(target).load(model, PACKING)
    folder.load(model, PACKING)


def test_folder_that_cannot_be_made_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"m cannot be packed in .*file"):
        PackedFolder(tmp_path / "file").load(model_in(source), PACKING)


def started(script: str, source: Path, target: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", LOAD + script, str(source), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_full_disk_is_named_and_nothing_is_left(source: Path, target: Path) -> None:
    process = started(PACK_WITHOUT_ROOM, source, target)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    size = model_in(source).layout.file_bytes
    assert "m cannot be packed in" in output
    assert f"File too large): it takes {size} bytes there; make room" in output
    assert not list(target.glob("*.hearth"))
    assert not list(target.glob("*.draft"))


def test_process_killed_while_packing_leaves_what_the_next_one_removes(
    source: Path, target: Path
) -> None:
    process = started(PACK_SLOWLY, source, target)
    assert line_of(process) == "packing"
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    [leftover] = target.glob("*.draft")
    model, folder = model_in(source), PackedFolder(target)
    assert not folder.has(model)
    pack(folder, replace(model, bits=4))
    assert not leftover.exists()
    assert numbers(folder.load(model, PACKING)) == read_numbers(model)


def test_two_processes_pack_a_model_once(source: Path, target: Path) -> None:
    first = started(PACK_SLOWLY, source, target)
    assert line_of(first) == "packing"
    second = started(PACK_BESIDE, source, target)
    assert line_of(second) == "waiting"
    outputs = [
        first.communicate("\n", timeout=TIMEOUT_S)[0],
        second.communicate(timeout=TIMEOUT_S)[0],
    ]
    assert (first.returncode, second.returncode) == (0, 0)
    assert ["packed m" in output for output in outputs] == [True, False]
    model = model_in(source)
    assert numbers(PackedFolder(target).load(model, PACKING)) == read_numbers(model)
