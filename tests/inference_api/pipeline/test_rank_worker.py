"""What a rank is told that no rank 0 would tell."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from inference_api.loading.options import EngineOptions
from inference_api.pipeline.messages import BadMessage, Kind, Message, step_numbers
from inference_api.pipeline.rank_runners import part_runners
from inference_api.pipeline.rank_worker import RankWorker
from inference_api.pipeline.ranks import RankSettings
from inference_api.pipeline.ring import Ring
from inference_api.pipeline.runner import PipelineRunner
from inference_api.runner import RowStep
from tests.inference_api.conftest import Tiny
from tests.ports import free_port

OPTIONS = EngineOptions(device="cpu", max_rows=2, max_seq_len=64)  # two pages of each row
HIDDEN = 64


def refused(folder: Path, told: Sequence[Message]) -> str:
    """How a rank ends that is told this once it has its layers."""
    port, faults = free_port(), []

    def work() -> None:
        ring = Ring.join(RankSettings(rank=1, world_size=2, master_port=port), HIDDEN, 60.0)
        try:
            RankWorker(ring, part_runners(folder, OPTIONS, local_ranks=1)).run()
        except BadMessage as error:
            faults.append(str(error))

    thread = Thread(target=work)
    thread.start()
    join = partial(Ring.join, RankSettings(rank=0, world_size=2, master_port=port), timeout_s=60.0)
    runner = PipelineRunner(part_runners(folder, OPTIONS, local_ranks=1), (1, 1), join)
    runner.load()
    for message in told:
        runner._current_ring.send(message)
    thread.join(60)
    runner.close()
    [fault] = faults
    return fault


def step_of(row: RowStep) -> Message:
    states = np.zeros((len(row.token_ids), HIDDEN), np.float32)
    return Message(Kind.STEP, step_numbers([row]), states)


def prompt_of(*rows: RowStep) -> Message:
    return Message(Kind.PROMPT, step_numbers(rows), np.zeros((len(rows), HIDDEN), np.float32))


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (Message(Kind.PLACE, (2, 0, 0, 1)), "rows .* of 2"),
        (Message(Kind.PLACE, (-1, 0, 0, 1)), "rows .* of 2"),
        (Message(Kind.PLACE, (0, 0, 2, 1)), "slots .* of 64"),
        (Message(Kind.PLACE, (0, 0, 1, 1, 2)), "slots .* of 64"),
        (Message(Kind.PLACE, (0, 0, -1, 1)), "slots .* of 64"),
        (Message(Kind.PLACE, (0, 0, 0)), "slots .* of 64"),
        (Message(Kind.PLACE, (0, 0, 0, 4)), "pages .* of 4"),
        (Message(Kind.PLACE, (0, 0, 0, -1)), "pages .* of 4"),
        (Message(Kind.PLACE, (1, 0, 1, 2)), "row 1 without page 0 of group 0"),
        (Message(Kind.PLACE, (0, 1, 0, 2)), "group 1 of 1"),
        (Message(Kind.PLACE, (0, -1, 0, 2)), "group -1 of 1"),
        (Message(Kind.COPY_PAGE, (0, 4)), "pages .* of 4"),
        (Message(Kind.COPY_PAGE, (-1, 0)), "pages .* of 4"),
        (Message(Kind.KEEP, (2, 0, 1)), "rows .* of 2"),
        (Message(Kind.KEEP, (0, 62, 1, 2)), "slots .* of 64"),
        (Message(Kind.KEEP, (0, 30, 0, 2)), "row 0 without pages for 33 tokens"),
        (step_of(RowStep(1, 0, range(3))), "row 1 without pages for 3 tokens"),
        (step_of(RowStep(0, 0, range(33))), "row 0 without pages for 33 tokens"),
        (prompt_of(RowStep(0, 0, (5,)), RowStep(1, 0, (5,))), "a prompt of 2 rows"),
    ],
    ids=lambda each: f"{each.kind.name} {each.numbers}" if isinstance(each, Message) else "",
)
def test_pages_that_are_not_there_are_refused(
    message: Message, fault: str, tiny_model: Tiny
) -> None:
    placed = Message(Kind.PLACE, (0, 0, 0, 3))
    assert re.match(fault, refused(tiny_model("llama"), [placed, message]))
