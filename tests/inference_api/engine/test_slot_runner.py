"""Experts of a bundle on CUDA: models that come and go in slots, here of the CPU's memory."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from shutil import copytree
from threading import Event, Thread
from typing import Any
from weakref import ref

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_api.engine.cuda.graphs import SPARE_BYTES, Forward, Step
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.cuda.slot_runner import SlotRunner
from inference_api.engine.cuda.slots import LEFT_BYTES, Pin, Place, Slots
from inference_api.engine.devices import check_memory
from inference_api.errors import StartupError
from inference_api.loading import hardware
from inference_api.loading.memory import slot_bytes
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.tiny_models import CONTEXT

ROWS = 2
HELD_BYTES = 2**24
PROMPT = (5, 17, 250, 9, 33, 4)
SCORED = Draw(SamplingParams(num_logprobs=3, temperature=0.0), PROMPT, ())
FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}


def options_of(form: str) -> EngineOptions:
    return EngineOptions(device="cpu", max_rows=ROWS, max_seq_len=CONTEXT, **FORMS[form])


def answers(runner: CudaRunner) -> list[Any]:
    """What two rows draw after a prompt and some more tokens, with log probabilities."""
    found = []
    for position, row in ((0, 1), (6, 1), (0, 0), (7, 1)):
        ids = PROMPT if position == 0 else PROMPT[:1]
        (result,) = runner.step([RowStep(row, position, ids, (SCORED,))])
        found += [(each.token_id, each.logprobs) for each in result.drawn]
    return found


class Bundle:
    """Experts over slots as large as the largest needs; `recorded` has what steps were recorded."""

    def __init__(
        self,
        packed: Path,
        sources: Sequence[tuple[Path, str]],
        num_slots: int,
        pin: Pin | None = None,
    ) -> None:
        self.recorded: list[Forward] = []
        self.pauses = 0
        self.slots = Slots("cpu", self._pause, HELD_BYTES, self._capture, pin)
        folder = PackedFolder(packed)
        self.runners = [
            SlotRunner(source, options_of(form), folder, Place(self.slots))
            for source, form in sources
        ]
        footprints = [each.footprint for each in self.runners]
        sizes = [slot_bytes(each.weights_bytes, each.cache_bytes) for each in footprints]
        self.slots.allocate(num_slots, max(sizes))

    def _pause(self) -> None:
        self.pauses += 1

    def _capture(self, forward: Forward, inputs: Tensor) -> Step:
        self.recorded.append(forward)
        return partial(forward, inputs)


def read(source: Path, form: str) -> CudaRunner:
    runner = CudaRunner(source, options_of(form))
    runner.load()
    return runner


@pytest.mark.parametrize(
    ("name", "form"),
    [*(("llama-tied", form) for form in FORMS), ("qwen3-moe", "int8"), ("deepseek-v2", "float32")],
)
def test_answers_have_the_bits_of_weights_that_were_read(
    name: str, form: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    """In either slot, and after another expert was there."""
    source, other = tiny_model(name), tiny_model("llama-biases")
    expected = answers(read(source, form))
    bundle = Bundle(tmp_path, [(source, form), (other, "bfloat16")], 2)
    runner, neighbour = bundle.runners
    for is_packed in (False, True):
        assert runner.is_packed() == is_packed
        runner.load()
        assert answers(runner) == expected
        runner.unload()
    for _ in range(2):  # it comes to the other slot, then to where the neighbour was
        neighbour.load()
        answers(neighbour)
        runner.load()
        assert answers(runner) == expected
        for each in (neighbour, runner):
            each.unload()
        runner.load()
        assert answers(runner) == expected
        runner.unload()


def test_steps_are_recorded_once_for_each_slot_and_stay_valid(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    sources = [(tiny_model(name), "float32") for name in ("llama", "qwen3")]
    expected = [answers(read(*each)) for each in sources]
    bundle = Bundle(tmp_path, sources, 1)
    numbers = []
    for _ in range(3):
        for runner, own in zip(bundle.runners, expected, strict=True):
            runner.load()
            assert answers(runner) == own
            runner.unload()
        numbers.append(len(bundle.recorded))
    assert numbers[0] > 0
    assert numbers == numbers[:1] * 3


def test_other_weights_of_the_same_expert_are_no_longer_those_recorded(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    source = copytree(tiny_model("llama-biases"), tmp_path / "model")
    [runner] = Bundle(tmp_path / "packed", [(source, "int8")], 1).runners
    runner.load()
    before = answers(runner)
    runner.unload()
    [file] = source.glob("*.safetensors")
    save_file({name: 1.5 * each for name, each in load_file(file).items()}, file)
    runner.load()
    assert answers(runner) == answers(read(source, "int8")) != before


def test_memory_is_foreseen_to_the_byte_and_none_is_shared(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    """A draft model lies behind its model, in the same slot."""
    source = tiny_model("llama")
    slots = Slots("cpu", lambda: None)
    place, folder = Place(slots), PackedFolder(tmp_path)
    pair = [SlotRunner(source, options_of(form), folder, place) for form in ("int8", "bfloat16")]
    footprints = [each.footprint for each in pair]
    slots.allocate(1, sum(slot_bytes(each.weights_bytes, each.cache_bytes) for each in footprints))
    for each in pair:
        each.load()
    parts = [part for each in pair for part in (each._weights, each._cache.entries)]
    sizes = [size for each in footprints for size in (each.weights_bytes, each.cache_bytes)]
    assert [part.nbytes for part in parts] == sizes
    assert sorted(file.stat().st_size for file in tmp_path.glob("*.hearth")) == sorted(sizes[::2])
    ends = [part.data_ptr() + part.nbytes for part in parts]
    assert all(end <= part.data_ptr() for end, part in zip(ends, parts[1:], strict=False))
    for each, form in zip(pair, ("int8", "bfloat16"), strict=True):
        assert answers(each) == answers(read(source, form))
    for each in pair:
        each.unload()
    assert slots.free == [0], "both have left"


def test_loading_beside_steps_of_another_runner_changes_no_bit(
    tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_api.engine.cuda.slots.PIECE_BYTES", 4096)
    sources = [(tiny_model(name), "float32") for name in ("llama", "qwen3")]
    bundle = Bundle(tmp_path, sources, 2)
    resident, other = bundle.runners
    resident.load()
    expected, is_done = answers(resident), Event()

    def load() -> None:
        for _ in range(5):
            other.load()
            other.unload()
        other.load()
        is_done.set()

    loader = Thread(target=load)
    loader.start()
    num_rounds = 0
    while not is_done.is_set() or num_rounds == 0:
        assert answers(resident) == expected
        num_rounds += 1
    loader.join()
    assert bundle.pauses > 6 * other.footprint.weights_bytes // 4096
    assert answers(other) == answers(read(*sources[1]))


def test_held_file_is_read_once_in_pieces_that_are_pinned(
    tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_api.engine.cuda.slots.PIECE_BYTES", 2**14)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: None)
    source, pieces = (tiny_model("llama"), "int4"), list[Tensor]()
    [runner] = Bundle(tmp_path, [source], 1, pieces.append).runners
    expected = answers(read(*source))
    for _ in range(3):
        runner.load()
        assert answers(runner) == expected
        runner.unload()
        for file in tmp_path.glob("*.hearth"):
            file.write_bytes(b"")  # from now on it would be made again
            monkeypatch.setattr(PackedFolder, "_pack", pytest.fail)
    assert sum(piece.nbytes for piece in pieces) == runner.footprint.weights_bytes
    assert {piece.nbytes for piece in pieces[:-1]} == {2**14}


@pytest.mark.parametrize("lack", ["pins", "memory of the host", "memory_limit"])
def test_files_that_cannot_be_held_are_loaded_from_their_maps(
    lack: str,
    tiny_model: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pieces: list[Tensor] = []

    def pin(piece: Tensor) -> None:
        pieces.append(piece)
        if lack == "pins":
            raise RuntimeError("not permitted")

    available_bytes = LEFT_BYTES if lack == "memory of the host" else None
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: available_bytes)
    if lack == "memory_limit":
        monkeypatch.setattr("tests.inference_api.engine.test_slot_runner.HELD_BYTES", 10)
    sources = [(tiny_model(name), "float32") for name in ("llama", "qwen3")]
    bundle = Bundle(tmp_path, sources, 1, pin)
    for runner, source in 2 * [*zip(bundle.runners, sources, strict=True)]:
        runner.load()
        assert answers(runner) == answers(read(*source))
        runner.unload()
    assert len(pieces) == (lack == "pins"), "it is tried once"
    warned = [each.message for each in caplog.records if "slower" in each.message]
    assert len(warned) == {"pins": 1, "memory of the host": 4, "memory_limit": 0}[lack]


def test_gpu_with_too_little_memory_for_the_slots_is_a_fault_of_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = Slots("cpu", lambda: None)
    monkeypatch.setattr(slots, "free_bytes", lambda: SPARE_BYTES + 2**20)
    slots.allocate(2, 2**19)
    with pytest.raises(StartupError, match="fast_memory_limit: it has room for 2 experts"):
        slots.allocate(2, 2**19 + 1)


def test_models_leave_a_gpu_room_for_torch_and_recorded_steps(
    tiny_model: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CudaRunner(tiny_model("llama"), options_of("float32"))
    runner.device = "cuda"
    free_bytes = runner.footprint.total_bytes + SPARE_BYTES
    for missing_bytes, refusal in ((0, nullcontext()), (1, pytest.raises(StartupError))):
        found = (free_bytes - missing_bytes, 2**40)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, found=found: found)
        with refusal:
            check_memory({"model": runner})


def test_recordings_used_longest_ago_go_when_memory_is_short(
    tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of experts in memory; and whoever returns answers as before."""
    sources = [(tiny_model(name), "float32") for name in ("llama", "qwen3", "llama-biases")]
    bundle = Bundle(tmp_path, sources, 2)
    one, two, three = bundle.runners
    recordings = bundle.slots.recordings

    def kept() -> list[tuple[object, int]]:
        return [(owner, slot) for owner, slot, _ in recordings._kept]

    def stays(runner: SlotRunner) -> None:
        runner.load()
        assert answers(runner) == answers(read(*sources[bundle.runners.index(runner)]))

    stays(one)
    for other in (two, three):
        stays(other)
        other.unload()
    assert kept() == [(one, 0), (two, 1), (three, 1)]
    bundle.recorded.clear()  # they refer to their decoder
    forgotten = ref(recordings._kept[two, 1, two._key])
    monkeypatch.setattr(recordings, "_free_bytes", lambda: SPARE_BYTES - 1)
    stays(three)  # it has been there before
    one.unload()
    stays(one)
    three.unload()
    assert forgotten() is not None
    one.unload()
    stays(three)
    assert forgotten() is None
    assert kept() == [(three, 1), (one, 0), (three, 0)]
    stays(two)
    assert kept() == [(one, 0), (three, 0), (two, 1)]
