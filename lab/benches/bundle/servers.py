"""Starts the servers of `bench-bundle`: experts as a bundle, or each in a process of its own."""

import json
import mmap
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from inference_api.bundle.check import check_bundle
from inference_api.errors import StartupError
from inference_api.settings import load_settings
from inference_api.settings.bundle_file import BundleMember, read_bundle
from lab.benches.bundle.client import Ask, Reply, send
from lab.benches.bundle.figures import room_bytes
from lab.kit.servers import ROOT, ServedApi, eventually, served

PACKED = ROOT / "var" / "packed"
PAST_LIMITS = 2**50  # bytes; more than any limit
USER_ROWS = 32
START_TIMEOUT_S = 120.0
SLICE_BYTES = 16 * 2**20
RESIDENCE_LOADS = 5  # an expert stays for 4 times what its load took: see `residency`
SETTLED_S = 0.02


@dataclass(frozen=True, slots=True)
class Policy:
    """A bundle's policy: how many experts have room at once, and when they may be evicted."""

    room: int
    patience_s: float = 1.0
    min_residence_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of all processes of one or several servers. `rss_bytes` counts shared memory once
    per process, `pss_bytes` once in all."""

    rss_bytes: int  # anonymous memory and mapped files
    pss_bytes: int

    @classmethod
    def of(cls, apis: Sequence[ServedApi]) -> "Memory":
        pids = [pid for api in apis for pid in _pids(api)]
        totals = {"Pss": 0, "Rss": 0}
        for pid in pids:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
            for line in lines:
                name, _, rest = line.partition(":")
                if name in totals:
                    totals[name] += 1024 * int(rest.split()[0])
        return cls(totals["Rss"], totals["Pss"])


class BundleServer:
    """A running bundle. `limit_bytes` is its fast_memory_limit."""

    def __init__(self, api: ServedApi, names: Sequence[str], limit_bytes: int) -> None:
        self.api = api
        self.names = names
        self.limit_bytes = limit_bytes
        self._rested_s = 0.0  # when the expert that was loaded last may leave

    def port_of(self, expert: str) -> int:
        return self.api.port

    def ask(self, ask: Ask) -> Reply:
        """Sends a request. Raises AssertionError if it fails."""
        reply = send(self.api.port, ask)
        assert not reply.error, f"{ask.expert}: {reply.error}"
        if reply.switch is not None:
            self._rested_s = reply.ended_s + RESIDENCE_LOADS * reply.switch.load_s
        return reply

    def rest(self) -> None:
        """Wait until all residents may leave at once."""
        time.sleep(max(SETTLED_S, self._rested_s - time.perf_counter() + SETTLED_S))

    def experts(self) -> dict[str, Any]:
        """Returns what the server says of each expert."""
        return {each["name"]: each for each in self.api.get("/bundle").json()["experts"]}

    def num_loads(self) -> int:
        return sum(each["switches"] for each in self.experts().values())

    def unload(self, name: str) -> None:
        response = self.api.post(f"/bundle/unload/{name}?drain")
        assert response.status_code == 202, response.text
        eventually(lambda: self.experts()[name]["state"] == "on_disk")

    def is_resident(self, name: str) -> bool:
        return bool(self.experts()[name]["state"] == "resident")

    def mapped_files(self) -> list[Path]:
        """Returns the packed files that the server has mapped into memory."""
        lines = [
            line
            for pid in _pids(self.api)
            for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
        ]
        found = {match[0] for line in lines if (match := re.search(r"/\S+\.hearth$", line))}
        return [Path(each) for each in sorted(found)]

    def rss_bytes(self) -> int:
        return Memory.of([self.api]).rss_bytes


def experts_of(file: Path) -> list[BundleMember]:
    """Returns a bundle's experts, none pinned, all loaded on demand. Raises StartupError."""
    plain = {"pinned": False, "load": "demand"}
    return [each.model_copy(update=plain) for each in read_bundle(file).members]


@contextmanager
def bundle_server(experts: Sequence[BundleMember], policy: Policy) -> Iterator[BundleServer]:
    """Yields a bundle with room for `policy.room` experts, by sizes from the bundle's check."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "bundle.yaml"
        limit_bytes = _limit_bytes(experts, policy, file)
        _write(file, experts, limit_bytes, policy)
        own: dict[str, Any] = {"BUNDLE": file, "PACKED_FOLDER": PACKED, "USER_ROWS": USER_ROWS}
        with served(Path(folder) / "log", start_timeout_s=START_TIMEOUT_S, **own) as api:
            yield BundleServer(api, [each.name for each in experts], limit_bytes)
            api.stop()


@contextmanager
def servers_alone(experts: Sequence[BundleMember]) -> Iterator[dict[str, ServedApi]]:
    """Yields a server for each expert, by name, all running at once."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        apis = {}
        for number, expert in enumerate(experts):
            own: dict[str, Any] = {
                "MODEL": expert.source,
                "MODEL_NAME": expert.name,
                "QUANTIZATION": expert.quantisation,
                "USER_ROWS": expert.rows.max or USER_ROWS,
            }
            if expert.context is not None:
                own["MAX_SEQ_LEN"] = expert.context
            log = Path(folder) / f"log{number}"
            apis[expert.name] = stack.enter_context(served(log, start_timeout_s=None, **own))
        for api in apis.values():
            api.wait_until_ready(START_TIMEOUT_S)
        yield apis


def read_once_s(file: Path) -> float:
    """Returns the seconds that it takes to read a file once."""
    memory = mmap.mmap(-1, SLICE_BYTES)
    memory.write(bytes(SLICE_BYTES))  # touches its pages
    with file.open("rb", buffering=0) as stream:
        began_s = time.perf_counter()
        while stream.readinto(memory):
            pass
        return time.perf_counter() - began_s


def drop_from_cache(files: Sequence[Path]) -> None:
    """Drops these files from the page cache. Mapped pages stay."""
    for path in files:
        with path.open("rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_cached(file: Path) -> bool:
    """Returns whether the page in the middle of a file is in memory."""
    with file.open("rb", buffering=0) as stream:
        middle = file.stat().st_size // 2
        try:
            return os.preadv(stream.fileno(), [bytearray(1)], middle, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False


def _limit_bytes(experts: Sequence[BundleMember], policy: Policy, file: Path) -> int:
    _write(file, experts, PAST_LIMITS, policy)
    checked = check_bundle(read_bundle(file), load_settings())
    if not checked.valid or checked.utilization is None:
        raise StartupError(checked.errors)
    sizes = checked.utilization.experts
    pinned = {each.name for each in experts if each.pinned}
    held_bytes = sum(each.need_bytes for each in sizes if each.name in pinned)
    others = [each.need_bytes for each in sizes if each.name not in pinned]
    return checked.utilization.scratch_bytes + held_bytes + room_bytes(others, policy.room)


def _write(file: Path, experts: Sequence[BundleMember], limit_bytes: int, policy: Policy) -> None:
    bundle = {
        "version": 1,
        "memory_limit": PAST_LIMITS,
        "fast_memory_limit": limit_bytes,
        "patience_s": policy.patience_s,
        "min_residence_s": policy.min_residence_s,
        "experts": [each.model_dump(exclude_none=True, exclude_defaults=True) for each in experts],
    }
    file.write_text(json.dumps(bundle))  # JSON is valid YAML


def _pids(api: ServedApi) -> list[int]:
    process = psutil.Process(api.process.pid)
    return [each.pid for each in [process, *process.children(recursive=True)]]
