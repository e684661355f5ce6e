"""Runners whose weights come from packed files: bits of others, and memory that is given back."""

import json
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_api.engine import kernel_runner
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.kernels.library import Kernels
from inference_api.loading import hardware
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder
from inference_api.runner import HeadGuesses, place_own_pages
from inference_api.settings import EMBEDDED_MODEL
from lab.kit.servers import TIMEOUT_S
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.steps import decode, prefill
from tests.inference_api.engine.tiny_models import CONTEXT

ROWS = 4
PROMPT = [5, 17, 250, 9, 33, 4]
FORMS: dict[str, dict[str, Any]] = {
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8-bfloat16": {"quantization": "int8", "dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
}
MEASURE = """
import json, sys
from pathlib import Path
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.packing.folder import PackedFolder
from inference_api.loading.options import EngineOptions
from inference_api.runner import RowStep, place_own_pages

def kilobytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

options = EngineOptions(device="cpu", max_rows=32, quantization="int8", has_medusa=True)
packed = PackedFolder(Path(sys.argv[2]))
runner = KernelRunner(Path(sys.argv[1]), options, packed=packed)
seen = []
for cycle in range(32):
    runner.load()
    place_own_pages(runner)
    loaded = kilobytes()
    runner.step([RowStep(cycle % 32, 0, range(1, 40))])
    runner.unload()
    seen.append((loaded, kilobytes()))
print(json.dumps({"cache": runner.footprint.cache_bytes // 1024, "seen": seen}))
"""


def options_of(form: str, **others: Any) -> EngineOptions:
    values = {"device": "cpu", "max_rows": ROWS, "max_seq_len": CONTEXT, **FORMS[form], **others}
    return EngineOptions(**values)


@torch.inference_mode()
def answers(runner: KernelRunner, row: int = 0) -> Tensor:
    """Logits after a prompt and after some more tokens, of one row."""
    place_own_pages(runner)
    prefill(runner.decoder, row, 0, PROMPT)
    return torch.stack(
        [decode(runner.decoder, [token], [row], [len(PROMPT) + token]) for token in range(5)]
    )


@pytest.fixture
def packed(tmp_path: Path) -> PackedFolder:
    return PackedFolder(tmp_path / "packed")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["llama", "llama-tied", "llama-biases", "qwen3", "falcon-40b", "gemma4-shared"]
)
def test_answers_have_the_bits_of_weights_that_were_read(
    name: str, form: str, tiny_model: Tiny, packed: PackedFolder
) -> None:
    folder, options = tiny_model(name), options_of(form)
    read = KernelRunner(folder, options)
    read.load()
    runner = KernelRunner(folder, options, packed=packed)
    for is_packed in (False, True):
        assert runner.is_packed() == is_packed
        runner.load()
        assert torch.equal(answers(runner), answers(read))
        runner.unload()


@pytest.mark.parametrize(
    ("stored", "form"), [("F32", "float32"), ("Q8_0", "int8"), ("Q4_0", "int4")]
)
def test_gguf_files_are_packed_too(
    stored: str, form: str, tiny_model: Tiny, packed: PackedFolder, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    make_gguf(tiny_model("llama"), file, stored)
    read = KernelRunner(file, options_of(form))
    runner = KernelRunner(file, options_of(form), packed=packed)
    for each in (read, runner):
        each.load()
    assert torch.equal(answers(runner), answers(read))


def test_heads_guess_alike(packed: PackedFolder) -> None:
    options = options_of("int8", has_medusa=True)
    read = KernelRunner(EMBEDDED_MODEL, options)
    runner = KernelRunner(EMBEDDED_MODEL, options, packed=packed)
    hidden = [*np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)]
    guesses: list[HeadGuesses] = []
    for each in (read, runner):
        assert each.has_medusa_heads
        assert each.medusa is None
        each.load()
        assert each.medusa is not None
        guesses.append(each.medusa.guess(hidden))
    for of_read, of_packed in zip(*guesses, strict=True):
        assert np.array_equal(of_read, of_packed)
    runner.unload()
    assert runner.medusa is None


@pytest.mark.parametrize("form", FORMS)
def test_memory_is_foreseen_to_the_byte(
    form: str, tiny_model: Tiny, packed: PackedFolder, tmp_path: Path
) -> None:
    runner = KernelRunner(tiny_model("llama-tied"), options_of(form), packed=packed)
    foreseen = runner.footprint
    runner.load()
    [file] = (tmp_path / "packed").glob("*.hearth")
    assert foreseen.weights_bytes == file.stat().st_size
    assert foreseen.cache_bytes == runner._cache.pages.nbytes


def test_row_answers_alike_after_its_memory_was_given_back(
    tiny_model: Tiny, packed: PackedFolder
) -> None:
    runner = KernelRunner(tiny_model("llama"), options_of("float32"), packed=packed)
    runner.load()
    before, neighbour = answers(runner, 1), answers(runner, 2)
    of_row = runner.layout.num_pages // ROWS
    runner.give_back(range(of_row, 2 * of_row))
    with torch.inference_mode():
        again = decode(runner.decoder, [4], [2], [len(PROMPT) + 4])
    assert torch.equal(again, neighbour[-1])
    assert torch.equal(answers(runner, 1), before)


class OwnedKernels(Kernels):
    """Kernels for the thread that made them, and no other."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads)
        self._owner = get_ident()

    def __getattribute__(self, name: str) -> Any:
        if name in ("pack", "linear", "attention", "draw", "step", "guess"):
            assert get_ident() == self._owner, f"{name} on another thread"
        return super().__getattribute__(name)


@pytest.fixture
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_runner, "MIN_PARAMETERS_TO_SHARE", 0)
    monkeypatch.setattr(hardware, "physical_cores", lambda: 2)


@pytest.mark.usefixtures("_two_threads")
def test_loading_beside_steps_of_another_runner_changes_no_bit(
    tiny_model: Tiny, packed: PackedFolder
) -> None:
    kernels_of = cache(OwnedKernels)
    resident, other = (
        KernelRunner(folder, options_of("int8", has_medusa=True), kernels_of, packed)
        for folder in (tiny_model("llama"), EMBEDDED_MODEL)
    )
    resident.load()
    expected = answers(resident)
    alone = KernelRunner(EMBEDDED_MODEL, options_of("int8"))
    alone.load()
    is_done = Event()
    failures: list[BaseException] = []

    def load_and_unload() -> None:
        try:
            for _ in range(5):
                other.load()
                other.unload()
            other.load()
        except BaseException as error:
            failures.append(error)
        finally:
            is_done.set()

    loader = Thread(target=load_and_unload)
    loader.start()
    num_rounds = 0
    while not is_done.is_set() or num_rounds == 0:
        assert torch.equal(answers(resident, num_rounds % ROWS), expected)
        num_rounds += 1
    loader.join()
    assert failures == []
    assert torch.equal(answers(other), answers(alone))


def test_memory_does_not_grow_with_loading_again_and_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE, str(EMBEDDED_MODEL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    measured = json.loads(done.stdout)
    loaded, unloaded = zip(*measured["seen"][16:], strict=True)  # what stays is there by then
    for seen in (unloaded, loaded):
        grown = sorted(after - before for before, after in pairwise(seen))
        assert sum(grown[:-1]) < 4096  # the allocator may take memory for good once, at any time
    assert loaded[-1] - unloaded[-1] > 5600  # the weights take 5667
    assert loaded[-1] - unloaded[-1] < measured["cache"]  # of 32 rows
