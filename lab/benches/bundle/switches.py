"""Measures switches: times between all pairs of experts, memory, and a large expert."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

from benchmarking.analysis.switching import rotation, three_sigma_s
from inference_api.settings.bundle_file import BundleMember
from lab.benches.bundle.client import Ask, Reply
from lab.benches.bundle.figures import MIB, Spread, slope_per_100
from lab.benches.bundle.servers import (
    BundleServer,
    Policy,
    bundle_server,
    drop_from_cache,
    is_cached,
    read_once_s,
)
from lab.benches.bundle.text import ms, table

PROMPT = "What is the capital of Kenya?"
FOLLOWERS = 3  # requests after a switch, as controls and for the estimate
WARM_UP_SWITCHES = 20
ALONE = Policy(room=1, patience_s=10.0, min_residence_s=0.0)  # experts leave when they are idle


@dataclass(frozen=True, slots=True)
class Walk:
    """Switches along one walk, in seconds, by (from, to); `loads_s` and `reads_s` by expert."""

    is_cold: bool
    switches_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    estimates_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    controls_s: dict[str, list[float]] = field(default_factory=dict)
    loads_s: dict[str, list[float]] = field(default_factory=dict)
    reads_s: dict[str, list[float]] = field(default_factory=dict)
    file_bytes: dict[str, int] = field(default_factory=dict)

    def note(self, before: str, first: Reply, others: Sequence[Reply], read_s: float) -> None:
        """Record a switch. `first` waited for it, `others` came after it."""
        assert first.switch is not None
        name, ttfts_s = first.ask.expert, [each.ttft_s for each in (first, *others)]
        self.switches_s.setdefault((before, name), []).append(first.switch.total_s)
        self.estimates_s.setdefault((before, name), []).append(three_sigma_s(ttfts_s) or 0.0)
        self.controls_s.setdefault(name, []).extend(map(_paid_s, others))
        self.loads_s.setdefault(name, []).append(first.switch.load_s)
        self.reads_s.setdefault(name, []).append(read_s)


def measure_matrix(
    experts: Sequence[BundleMember], laps: int, draw: Random
) -> tuple[list[Walk], str]:
    """Measures switches warm, and cold: without the expert's file in the page cache."""
    names = [each.name for each in experts]
    with bundle_server(experts, ALONE) as server:
        files = packed_files(server)
        walks = [_walked(server, files, laps, draw, is_cold) for is_cold in (False, True)]
    parts = [_matrix_text(names, walk) for walk in walks]
    return walks, "\n\n".join([*parts, _files_text(names, walks)])


def packed_files(server: BundleServer) -> dict[str, list[Path]]:
    """Returns each expert's packed files, which it maps while alone. Packs missing files."""
    files = {}
    for name in server.names:
        server.ask(Ask(name, PROMPT, 2))
        _leave_only(server, name)
        files[name] = server.mapped_files()
        server.rest()
    return files


def _walked(
    server: BundleServer, files: dict[str, list[Path]], laps: int, draw: Random, is_cold: bool
) -> Walk:
    walk = Walk(is_cold)
    # In another order each time, lest slow changes of the machine affect the same pairs of models.
    names = draw.sample([*files], len(files))
    walk.file_bytes.update({name: sum(map(_size, paths)) for name, paths in files.items()})
    visits = rotation(names, laps)[len(names) :]  # without warm-up, done by `packed_files`
    server.ask(Ask(visits[0], PROMPT, 2))
    for before, name in pairwise(visits):
        _leave_only(server, before)
        server.rest()
        read_s = _prepare(files[name], is_cold)
        first, *others = [server.ask(Ask(name, PROMPT, 8)) for _ in range(1 + FOLLOWERS)]
        assert first.switch is not None, f"{name} was resident when {before} had served last"
        walk.note(before, first, others, read_s)
    return walk


def _prepare(files: Sequence[Path], is_cold: bool) -> float:
    """Puts the files into the page cache, or drops them from it. Returns the seconds that it takes
    to read them in that state."""
    if is_cold:
        drop_from_cache(files)
        assert not any(map(is_cached, files)), "the system keeps the file in its page cache"
    took_s = sum(map(read_once_s, files))
    if is_cold:
        drop_from_cache(files)
    return took_s


def _leave_only(server: BundleServer, name: str) -> None:
    """Unloads all other residents, because small experts may fit beside this one."""
    for other, state in server.experts().items():
        if other != name and state["state"] == "resident":
            server.unload(other)


def _paid_s(reply: Reply) -> float:
    return 0.0 if reply.switch is None else reply.switch.total_s


def _size(file: Path) -> int:
    return file.stat().st_size


def _matrix_text(names: Sequence[str], walk: Walk) -> str:
    def cell(before: str, name: str) -> str:
        if before == name:
            return f"({ms(Spread.of(walk.controls_s[name]))})"
        estimate = 1000 * median(walk.estimates_s[before, name])
        return f"{ms(Spread.of(walk.switches_s[before, name]))} [{estimate:.1f}]"

    state = "cold" if walk.is_cold else "warm"
    rows = [(before, *(cell(before, name) for name in names)) for before in names]
    return (
        f"Switching time {state}, ms: median / p95 [by SambaNova's 3-sigma estimate]; "
        f"{min(map(len, walk.switches_s.values()))} of each pair.\n\n"
        + table([f"from, {state}", *names], rows)
    )


def _files_text(names: Sequence[str], walks: Sequence[Walk]) -> str:
    def row(name: str) -> Iterator[str]:
        yield name
        yield f"{walks[0].file_bytes[name] / MIB:.1f}"
        for walk in walks:
            load, read = Spread.of(walk.loads_s[name]), Spread.of(walk.reads_s[name])
            assert load is not None
            assert read is not None
            yield from (ms(load), ms(read), f"{load.median_s / read.median_s:.2f}")

    states = ["cold" if walk.is_cold else "warm" for walk in walks]
    figures = [f"{state} {each}" for state in states for each in ("load ms", "read ms", "ratio")]
    return table(["expert", "file MiB", *figures], [list(row(name)) for name in names])


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory over many switches: the processes' resident bytes after each."""

    base_bytes: int  # before the first expert was loaded
    limit_bytes: int  # the limit for experts
    rss_bytes: list[int]

    @property
    def is_within(self) -> bool:
        return max(self.rss_bytes) <= self.base_bytes + self.limit_bytes

    @property
    def slope_bytes(self) -> float:
        """Returns the growth per 100 switches."""
        return slope_per_100(self.rss_bytes[WARM_UP_SWITCHES:])


def measure_memory(
    experts: Sequence[BundleMember], num: int, draw: Random
) -> tuple[Footprint, str]:
    """Measures `num` switches after a warm-up, with room for two experts."""
    with bundle_server(experts, Policy(2, patience_s=0.0, min_residence_s=0.0)) as server:
        base_bytes, rss_bytes, name = server.rss_bytes(), list[int](), ""
        while len(rss_bytes) < WARM_UP_SWITCHES + num:
            name = draw.choice([other for other in server.names if other != name])
            if server.ask(Ask(name, PROMPT, 8)).switch is not None:
                rss_bytes.append(server.rss_bytes())
            server.rest()
        footprint = Footprint(base_bytes, server.limit_bytes, rss_bytes)
    text = table(
        ["switches", "base MiB", "limit MiB", "most MiB", "within", "slope per 100, MiB"],
        [
            (
                num,
                f"{base_bytes / MIB:.1f}",
                f"{footprint.limit_bytes / MIB:.1f}",
                f"{max(rss_bytes) / MIB:.1f}",
                "yes" if footprint.is_within else "NO",
                f"{footprint.slope_bytes / MIB:.3f}",
            )
        ],
    )
    return footprint, text


@dataclass(frozen=True, slots=True)
class LargeSwitch:
    """Loads of one large expert and reads of its file, in seconds. `first_s` is the first load in a
    new process, which also compares checksums."""

    name: str
    file_bytes: int
    first_s: float
    walk: Walk

    @property
    def ratio(self) -> float:
        """Returns the median load time over the median time to read the file once."""
        return median(self.walk.loads_s[self.name]) / median(self.walk.reads_s[self.name])


def measure_large(
    large: BundleMember, small: BundleMember, laps: int
) -> tuple[list[LargeSwitch], str]:
    """Measures switches between a large expert and a small one, warm and cold."""
    with bundle_server([large, small], ALONE) as server:
        server.ask(Ask(large.name, PROMPT, 1))  # packs it
        server.ask(Ask(small.name, PROMPT, 1))
    switches = []
    with bundle_server([large, small], ALONE) as server:
        _leave_only(server, small.name)
        first = server.ask(Ask(large.name, PROMPT, 1))
        assert first.switch is not None
        server.rest()
        files = packed_files(server)
        for is_cold in (False, True):
            walk = _walked(server, files, laps, Random(0), is_cold)
            num_bytes = walk.file_bytes[large.name]
            switches.append(LargeSwitch(large.name, num_bytes, first.switch.load_s, walk))
    rows = [
        (
            "cold" if each.walk.is_cold else "warm",
            f"{each.file_bytes / MIB:.0f}",
            f"{1000 * each.first_s:.0f}",
            ms(Spread.of(each.walk.loads_s[large.name])),
            ms(Spread.of(each.walk.reads_s[large.name])),
            f"{each.ratio:.2f}",
        )
        for each in switches
    ]
    columns = [
        "1.1B int8",
        "file MiB",
        "first load, at once ms",
        "load ms",
        "read once ms",
        "load ÷ read",
    ]
    return switches, table(columns, rows)
