"""Measures residents' inter-token latency with and without loads of other experts."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from threading import Event

from inference_api.settings.bundle_file import BundleMember
from lab.benches.bundle.client import Ask, Reply, Span, send
from lab.benches.bundle.figures import Spread, merged, spread_of_gaps, touches
from lab.benches.bundle.servers import BundleServer, Policy, bundle_server
from lab.benches.bundle.text import ms, table

STREAM_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Inter-token latencies of a resident."""

    resident: str
    newcomers: str
    load: Spread
    without: Spread  # while nothing was loaded
    inside: Spread  # while an expert was loaded

    @property
    def ratio(self) -> float:
        return self.inside.p99_s / self.without.p99_s


def measure_itl(
    resident: BundleMember, newcomers: Sequence[BundleMember], num_streams: int, seconds: float
) -> tuple[Disturbance, str]:
    """Loads nothing for half of the time, then lets `newcomers` replace each other.

    Newcomers answer, too, in steps that the resident shares, so gaps beyond a load's end are left
    out.
    """
    pinned = resident.model_copy(update={"pinned": True, "load": "start"})
    policy = Policy(room=1, patience_s=0.0, min_residence_s=0.0)
    names = [each.name for each in newcomers]
    with bundle_server([pinned, *newcomers], policy) as server:
        for name in (*names, *names):  # so that they are packed and this process has checked them
            server.ask(Ask(name, "Hi", 1))
            server.rest()
        with _streams(server, resident.name, num_streams) as streams:
            quiet = _span_of(seconds / 2)
            paid = _loads(server, names, seconds / 2)
    found = disturbance(resident.name, ", ".join(names), streams, quiet, paid)
    return found, _text(found, num_streams)


def disturbance(
    resident: str, newcomers: str, streams: Sequence[Reply], quiet: Span, paid: Sequence[Reply]
) -> Disturbance:
    """`quiet` is when nothing was loaded; `paid` are the replies that waited for a load."""
    loads = merged(span for reply in paid if (span := reply.load) is not None)
    answers = merged(
        Span(span.end_s, reply.ended_s) for reply in paid if (span := reply.load) is not None
    )
    gaps = [gap for stream in streams for gap in stream.gaps]
    without = spread_of_gaps(
        gap for gap in gaps if quiet.begin_s <= gap.begin_s and gap.end_s <= quiet.end_s
    )
    inside = spread_of_gaps(
        gap for gap in gaps if touches(gap, loads) and not touches(gap, answers)
    )
    load = spread_of_gaps(loads)
    assert without is not None
    assert inside is not None
    assert load is not None
    return Disturbance(resident, newcomers, load, without, inside)


def _text(found: Disturbance, num_streams: int) -> str:
    parts = ("median", "p99", "max")
    columns = (
        "streams",
        "loads of",
        "loads",
        "load ms p50 / p95",
        "ITL without, ms p50 / p99 / max",
        "while loading",
        "gaps",
        "p99 ÷ without",
    )
    row = (
        f"{num_streams} of {found.resident}",
        found.newcomers,
        found.load.num,
        ms(found.load),
        ms(found.without, *parts),
        ms(found.inside, *parts),
        found.inside.num,
        f"{found.ratio:.2f}",
    )
    return table(columns, [row])


@contextmanager
def _streams(server: BundleServer, name: str, num: int) -> Iterator[list[Reply]]:
    """Keeps `num` streams running. The list has their replies after the block."""
    replies: list[Reply] = []
    is_over = Event()

    def stream(user: int) -> None:
        ask = Ask(name, f"Tell me a story about {user} foxes.", STREAM_TOKENS, ignore_eos=True)
        while not is_over.is_set():
            reply = send(server.api.port, ask)
            assert not reply.error, reply.error
            replies.append(reply)

    with ThreadPoolExecutor(num) as pool:
        users = [pool.submit(stream, user) for user in range(num)]
        try:
            time.sleep(0.5)
            yield replies
        finally:
            is_over.set()
        for user in users:
            user.result()


def _loads(server: BundleServer, names: Sequence[str], seconds: float) -> list[Reply]:
    """Loads experts one after the other, each as soon as the previous one has left."""
    ends_s, replies = time.perf_counter() + seconds, list[Reply]()
    for name in cycle(names):
        if time.perf_counter() > ends_s:
            break
        replies.append(server.ask(Ask(name, "Hi", 1)))
        server.unload(name)
    return replies


def _span_of(seconds: float) -> Span:
    began_s = time.perf_counter()
    time.sleep(seconds)
    return Span(began_s, time.perf_counter())
