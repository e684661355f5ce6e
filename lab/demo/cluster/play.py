"""Plays the story: runs services and load, and kills or slows machines meanwhile. One thread, and
the load's threads."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from common.fetch import answers_ok
from lab.demo.cluster.files import Addresses, write_cluster
from lab.demo.cluster.load import Load, Request
from lab.demo.cluster.machines import Place, node_with_replica
from lab.demo.cluster.processes import running_services, until
from lab.demo.cluster.story import MODEL_NAME, Story
from lab.demo.cluster.verdict import Run
from lab.demo.cluster.watch import Row, Watch, ready_urls, state_of
from lab.kit.shares import HeldReplicas, choose_limiter

FIRST_REPLICA_S = 120.0
KILL_AT = 0.6  # share of the busy periods before a node is killed


@dataclass(frozen=True, slots=True)
class Options:
    """`kills` says whether to kill a Ray node under load."""

    folder: Path
    kills: bool = False


def play(story: Story, place: Place, options: Options, report: Callable[[Row], None]) -> Run:
    """Plays the story, and tells each row. Raises DemoFailed."""
    with (
        running_services(
            options.folder, partial(write_cluster, options.folder, story, place.actuator)
        ) as (addresses, token),
        _holding(story, place) as hold,
    ):
        controller_url = addresses.url(addresses.controller)
        wait_for_service(addresses)
        request = Request(addresses.proxy, token, MODEL_NAME, story.out_tokens)
        load = Load(request, story.rate_at, story.most_per_s, story.seed)
        killed_s, dead = None, set[str]()
        try:
            watch = Watch(controller_url, load, story, hold)
            if options.kills and place.nodes is not None:
                watch.until(story.rise_s + KILL_AT * (story.fall_s - story.rise_s), report)
                node, dead = node_with_replica(place.nodes, ready_urls(state_of(controller_url)))
                killed_s = load.now_s
                place.nodes.kill(node)
            watch.until(story.end_s, report)
        finally:
            load.end()
    strays = _strays(options.folder / "audit.jsonl", dead)
    return Run(story, tuple(load.outcomes), watch.looks, watch.rows, killed_s, strays)


def wait_for_service(addresses: Addresses) -> None:
    """Waits until the proxy has found the first replica. Raises DemoFailed."""
    proxy_url = addresses.url(addresses.proxy)
    until(lambda: answers_ok(f"{proxy_url}/ready"), FIRST_REPLICA_S, "the first replica")


@contextmanager
def _holding(story: Story, place: Place) -> Iterator[Callable[[set[str], float], None]]:
    """Yields a function that limits replicas, given by URL, to their share at a moment."""
    shares, folder = story.shares, place.folder
    if shares is None or folder is None:
        yield lambda _urls, _at_s: None
        return
    limiter = choose_limiter()
    held = HeldReplicas(folder, limiter)
    try:
        yield lambda urls, at_s: held.hold(
            urls, shares.before if at_s < story.rise_s else shares.after
        )
    finally:
        limiter.close()


def _strays(audit: Path, dead: set[str]) -> int:
    """Counts the requests that the proxy records as broken on other replicas than `dead`."""
    addresses = [urlsplit(url).netloc for url in dead]
    lines = [line for line in audit.read_text().splitlines() if line.startswith("{")]
    broken = [line for line in lines if json.loads(line).get("outcome") != "complete"]
    return sum(not any(address in line for address in addresses) for line in broken)
