"""How long an expert of a bundle takes to come to its slot, and how others decode meanwhile.

Two experts take turns in one slot, beside a third, which stays: random weights in int4, in int8,
and in int4 again. Exits with 1 where an expert that returns does not draw what it drew before.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread

from inference_api.engine.cuda.slot_runner import SlotRunner
from inference_api.engine.cuda.slots import Place, Slots
from inference_api.loading.memory import slot_bytes
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from lab.models.random_model import SHAPES, Shape, make_random_model

ROWS, CONTEXT_TOKENS, HELD_BYTES = 8, 256, 2**40
FORMS = ("int4", "int8", "int4")  # the last stays
PROMPT = (7,) * 64
DRAW = Draw(SamplingParams(temperature=0.0), (), ())
SWITCHES, STEPS = 5, 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        *others, resident = experts(SHAPES[arguments.shape], arguments.device, Path(folder))
        resident.load()
        first_token(resident)
        is_right = True
        for form, expert in zip(FORMS, others, strict=False):
            line, is_equal = switched(expert)
            print(f"{form}: {line}", flush=True)
            is_right &= is_equal
        print(beside(resident, others[0]))
    return 0 if is_right else 1


def experts(shape: Shape, device: str, folder: Path) -> list[SlotRunner]:
    """Those of FORMS, none in memory, over two slots."""
    make_random_model(shape, folder / "model")
    slots, packed = Slots(device, lambda: None, HELD_BYTES), PackedFolder(folder / "packed")
    options = EngineOptions(device=device, max_rows=ROWS, max_seq_len=CONTEXT_TOKENS)
    made = [
        SlotRunner(folder / "model", replace(options, quantization=form), packed, Place(slots))
        for form in FORMS
    ]
    footprints = [each.footprint for each in made]
    sizes = [slot_bytes(each.weights_bytes, each.cache_bytes) for each in footprints]
    slots.allocate(2, max(sizes))
    return made


def switched(expert: SlotRunner) -> tuple[str, bool]:
    """What an expert's first stay and later ones take, and whether it draws alike in all."""
    packed_s = seconds_of(expert.load)
    recorded_s = seconds_of(lambda: first_token(expert))
    drawn = first_token(expert)
    loads_s, firsts_s, is_equal = [], [], True
    for _ in range(SWITCHES):
        expert.unload()
        loads_s.append(seconds_of(expert.load))
        firsts_s.append(seconds_of(lambda: first_token(expert)))
        is_equal &= first_token(expert) == drawn
    expert.unload()
    size, load_s = expert.footprint.weights_bytes, median(loads_s)
    line = (
        f"{size / 1e9:.2f} GB: first load, which packs, {packed_s:.2f} s, first token, which "
        f"records, {recorded_s:.2f} s; then load {1e3 * load_s:.1f} ms ({size / load_s / 1e9:.1f} "
        f"GB/s), first token {1e3 * median(firsts_s):.1f} ms; "
        f"{'equal' if is_equal else 'NOT EQUAL'}"
    )
    return line, is_equal


def beside(resident: SlotRunner, other: SlotRunner) -> str:
    """The steps of one expert while nothing is loaded, and while another comes and goes."""
    alone_s, is_done = [*steps_s(resident, STEPS)], Event()

    def come_and_go() -> None:
        while not is_done.is_set():
            other.load()
            other.unload()

    loader = Thread(target=come_and_go)
    loader.start()
    try:
        meanwhile_s = [*steps_s(resident, STEPS)]
    finally:
        is_done.set()
        loader.join()
    times = [
        f"{1e3 * median(each):.2f} ms, at most {1e3 * max(each):.2f}"
        for each in (alone_s, meanwhile_s)
    ]
    return f"a step of {ROWS} rows: {times[0]}; while others load: {times[1]}"


def steps_s(runner: SlotRunner, count: int) -> Iterator[float]:
    rows = [RowStep(row, len(PROMPT), (7,), (DRAW,)) for row in range(ROWS)]
    for _ in range(count):
        yield seconds_of(lambda: runner.step(rows))


def first_token(runner: SlotRunner) -> int:
    """A prompt's, as a request waits for it."""
    (result,) = runner.step([RowStep(0, 0, PROMPT, (DRAW,))])
    return result.drawn[0].token_id


def seconds_of(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(main())
