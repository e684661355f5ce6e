"""The journal, with a line of JSON for each cycle. Converts cycles to JSON: whole for the journal,
without question and answer, or in short. Reads back what a starting controller needs."""

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import AwareDatetime, Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on

from cluster.clock import of_day_s
from cluster.controller.cycle import Cycle, ServerCycle
from cluster.controller.demand import OfferedLoad, Past, PastLoad
from cluster.controller.forecasts import JudgedForecast, JudgedForecasts
from cluster.controller.rollout import GroupJson
from cluster.replicas import Group, Outcome
from common.files import append_whole

log = logging.getLogger(__name__)

KEPT = 3  # old files: .1 is the youngest
READ_BACK_BYTES = 32 * 1024 * 1024
MAX_START_S = 1e6  # a line with more is damaged

Json = dict[str, Any]
Amount = Annotated[FiniteFloat, Field(ge=0)]


class Journal:
    """Writes lines to files of bounded size. Controller thread only."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Puts a file aside that ends within a line. Raises OSError if the file is unusable."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._paths = [path, *(Path(f"{path}.{n}") for n in range(1, KEPT + 1))]
        self._path, self._max_bytes = path, max_bytes
        with path.open("ab+") as stream:
            stream.seek(-min(stream.tell(), 1), os.SEEK_END)
            is_whole = stream.read(1) in (b"", b"\n")
        if not is_whole:  # the next line would be appended to the broken one and be lost
            log.warning("%s ends within a line, and is %s now", path, self._paths[1])
            self._rotate()

    def write(self, entry: dict[str, Any]) -> None:
        """Writes a complete line or nothing. Raises OSError."""
        line = json.dumps(entry, separators=(",", ":"), default=str).encode() + b"\n"
        if self._size() and self._size() + len(line) > self._max_bytes:
            self._rotate()
        append_whole(self._path, line, 0o640)

    def read_back(self, num_bytes: int = READ_BACK_BYTES) -> list[bytes]:
        """Returns the lines in the last `num_bytes`, oldest first; the first may lack its
        beginning. Skips unreadable files, because a controller can do without."""
        lines: list[bytes] = []
        try:
            for path in self._paths:
                if num_bytes <= 0 or not path.exists():
                    break
                with path.open("rb") as stream:
                    size = stream.seek(0, os.SEEK_END)
                    stream.seek(max(0, size - num_bytes))
                    lines = stream.read(min(size, num_bytes)).splitlines() + lines
                num_bytes -= size
        except OSError as error:
            log.warning("the journal is not read back: %s", error)
        return lines

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _rotate(self) -> None:
        for newer, older in reversed([*pairwise(self._paths)]):
            if newer.exists():
                newer.replace(older)


class UnplacedJson(TypedDict):
    """Replicas without room on any machine."""

    server: str
    accelerator: str
    replicas: int
    why: str


class ServerDecision(TypedDict):
    """A server's plan. `is_short` means that it has too few replicas for its load; `unmet` is the
    level that no number of replicas meets."""

    arrived_per_minute: float | None
    plan: list[GroupJson]
    has_changed: bool
    is_short: bool
    unmet: str
    held: str


class CycleJson(TypedDict):
    """`cost` is in cents per hour; `speeds` are the factors of each model and accelerator."""

    cycle: int
    at: str
    seconds: float
    fault: str
    cost: float | None
    servers: dict[str, ServerCycle]
    speeds: list[Json]
    not_learned: list[dict[str, str]]


class DecisionJson(TypedDict):
    cycle: int
    at: str
    fault: str
    cost: float | None
    servers: dict[str, ServerDecision]


class _PastLoad(TypedDict):
    arrivalRate: Amount
    avgInTokens: Amount
    avgOutTokens: Amount


class _PastServer(TypedDict):
    judged: NotRequired[dict[str, JudgedForecast]]
    arrived_per_minute: NotRequired[float | None]
    load: NotRequired[_PastLoad]


class _PastCycle(TypedDict):
    """A line of the journal. The line of a fault has no servers."""

    at: AwareDatetime
    servers: NotRequired[dict[str, _PastServer]]
    starts_s: NotRequired[dict[str, list[Annotated[Amount, Field(le=MAX_START_S)]]]]


_PAST = TypeAdapter(_PastCycle)
_DECISION = TypeAdapter(DecisionJson)
_SERVERS = TypeAdapter(dict[str, ServerCycle])


def past_in(lines: Iterable[bytes], now_s: float, kept_s: float) -> Past:
    """Returns the past that the journal's lines, oldest first, describe. Ignores loads older than
    `kept_s`. The first line may lack its beginning; the number of other damaged lines is logged."""
    judged: list[JudgedForecasts] = []
    loads: dict[str, PastLoad] = {}
    starts_s: Mapping[str, Sequence[float]] = {}
    num_damaged = 0
    for number, line in enumerate(lines):
        try:
            past = _PAST.validate_json(line)
        except ValidationError:
            num_damaged += number > 0
            continue
        servers, at_s = past.get("servers", {}), past["at"].timestamp()
        judged.append({name: each.get("judged", {}) for name, each in servers.items()})
        starts_s = past.get("starts_s", starts_s)
        for name, each in servers.items():
            is_measured = each.get("arrived_per_minute") is not None
            if is_measured and "load" in each and 0 <= now_s - at_s <= kept_s:
                load = each["load"]
                tokens = load["avgInTokens"], load["avgOutTokens"]
                loads[name] = PastLoad(at_s, OfferedLoad.of(load["arrivalRate"], *tokens))
    if num_damaged:
        log.warning("lines of the journal that are damaged, and left out: %d", num_damaged)
    return Past(judged, loads, starts_s)


def entry_of(
    cycle: Cycle,
    unplaced: Mapping[Group, Outcome],
    starts_s: Mapping[str, Sequence[float]],
    dry_run: bool,
) -> Json:
    """Returns a line of the journal. `starts_s` has the durations of each server's last starts."""
    answer = None if cycle.answer is None else cycle.answer.model_dump(by_alias=True)
    return {
        **cycle_json(cycle),
        "unplaced": unplaced_json(unplaced),
        "starts_s": {name: took for name, took in starts_s.items() if name in cycle.servers},
        "dry_run": dry_run,
        "question": cycle.question,
        "answer": answer,
    }


def fault_entry(at_s: float, fault: str) -> Json:
    """Returns a line of the journal about a cycle without a plan."""
    return {"at": _time_of(at_s), "fault": fault}


def cycle_json(cycle: Cycle) -> CycleJson:
    """Returns the observations and decisions of a cycle."""
    return {
        "cycle": cycle.number,
        "at": _time_of(cycle.at_s),
        "seconds": round(cycle.seconds, 4),
        "fault": cycle.fault,
        "cost": None if cycle.answer is None else cycle.answer.summary.total_cost,
        "servers": _SERVERS.dump_python(dict(cycle.servers)),
        "speeds": [
            {"model": model, "accelerator": accelerator, **factors.model_dump()}
            for (model, accelerator), factors in cycle.learned.factors.items()
        ],
        "not_learned": [
            {"model": model, "accelerator": accelerator, "why": why}
            for (model, accelerator), why in cycle.learned.why.items()
        ],
    }


def decision_of(cycle: Cycle) -> DecisionJson:
    """Returns the decisions of a cycle, in short."""
    return _DECISION.validate_python(cycle_json(cycle))  # drops all other keys


def unplaced_json(unplaced: Mapping[Group, Outcome]) -> list[UnplacedJson]:
    return [
        {"server": group.server, "accelerator": group.accelerator, "replicas": each.unplaced,
         "why": each.why}
        for group, each in unplaced.items()
    ]  # fmt: skip


def _time_of(at_s: float) -> str:
    return datetime.fromtimestamp(of_day_s(at_s), UTC).isoformat(timespec="milliseconds")
