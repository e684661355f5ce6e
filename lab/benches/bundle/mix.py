"""Serves many users and many experts at once: checks every answer, and measures waits."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from inference_api.settings.bundle_file import BundleMember
from lab.benches.bundle.client import Ask, PortOf, Reply, arriving, in_turn, send
from lab.benches.bundle.figures import (
    MIB,
    ExpertLoad,
    Spread,
    duration_s,
    load_of,
    merged,
    spread_of_gaps,
    touches,
)
from lab.benches.bundle.servers import BundleServer, Memory, Policy, bundle_server, servers_alone
from lab.benches.bundle.text import ms, table
from lab.kit.servers import ServedApi

PROMPTS_OF_EACH = 6  # examples per expert; every expert gets the examples of all
SAMPLED = 0.8  # the temperature of every other request
BUNDLE = Policy(room=2)
DEFAULTS = Policy(room=2, patience_s=10.0, min_residence_s=2.0)
ON_DEMAND = Policy(room=1, patience_s=0.0, min_residence_s=0.0)

Texts = Mapping[Ask, str]  # the answers that experts give alone


def possible_asks(experts: Sequence[BundleMember]) -> list[Ask]:
    """Returns asks of every expert with the examples of all experts, greedy and sampled."""
    prompts = [text for each in experts for text in each.examples[:PROMPTS_OF_EACH]]
    return [
        Ask(each.name, prompt, temperature=temperature, seed=seed)
        for each in experts
        for seed, prompt in enumerate(prompts)
        for temperature in (0.0, SAMPLED)
    ]


@dataclass(frozen=True, slots=True)
class Mix:
    """The results of a mixed load, for each expert and for all."""

    num_switches: int
    loads: list[ExpertLoad]
    itl_inside: Spread | None  # while an expert was loaded
    itl_outside: Spread | None


def measure_mix(
    experts: Sequence[BundleMember], num: int, users: int, max_ttft_s: float, draw: Random
) -> tuple[Mix, str]:
    """Measures a bundle with room for two, and compares answers with those of experts alone."""
    possible = possible_asks(experts)
    with servers_alone(experts) as apis:
        texts = texts_alone(apis, possible)
    asks = draw.choices(possible, k=num)
    with _warm(experts, BUNDLE) as server:
        before = server.num_loads()
        replies = in_turn(server.port_of, asks, users)
        num_switches = server.num_loads() - before
    mix = _mix_of(experts, replies, texts, max_ttft_s, num_switches)
    text = "\n\n".join([_loads_text(mix.loads, max_ttft_s), _itl_text(mix)])
    return mix, text


def texts_alone(apis: Mapping[str, ServedApi], asks: Sequence[Ask]) -> Texts:
    with ThreadPoolExecutor(len(apis)) as pool:
        replies = list(pool.map(lambda ask: send(apis[ask.expert].port, ask), asks))
    assert not any(reply.error for reply in replies), [reply.error for reply in replies]
    return {reply.ask: reply.text for reply in replies}


@contextmanager
def _warm(experts: Sequence[BundleMember], policy: Policy) -> Iterator[BundleServer]:
    """Yields a bundle whose experts are packed and checked by its process."""
    with bundle_server(experts, policy) as server:
        for each in experts:
            server.ask(Ask(each.name, "Hi", 2))
        yield server


def _mix_of(
    experts: Sequence[BundleMember],
    replies: Sequence[Reply],
    texts: Texts,
    max_ttft_s: float,
    num_switches: int,
) -> Mix:
    seconds = duration_s(replies)
    is_right = {id(reply): right(reply, texts) for reply in replies}

    def load(name: str, own: Sequence[Reply]) -> ExpertLoad:
        return load_of(name, own, [is_right[id(reply)] for reply in own], seconds, max_ttft_s)

    loads = [
        load(each.name, [reply for reply in replies if reply.ask.expert == each.name])
        for each in experts
    ]
    windows = merged(span for reply in replies if (span := reply.load) is not None)
    gaps = [gap for reply in replies for gap in reply.gaps]
    return Mix(
        num_switches,
        [*loads, load("all", replies)],
        spread_of_gaps(gap for gap in gaps if touches(gap, windows)),
        spread_of_gaps(gap for gap in gaps if not touches(gap, windows)),
    )


def right(reply: Reply, texts: Texts) -> bool:
    ask = reply.ask
    return not reply.error and reply.model == ask.expert and reply.text == texts[ask]


def _loads_text(loads: Sequence[ExpertLoad], max_ttft_s: float) -> str:
    columns = (
        "expert",
        "requests",
        "lost",
        "wrong",
        f"goodput/s (TTFT ≤ {max_ttft_s:g} s)",
        "tokens/s",
        "paid",
        "TTFT paid, ms p50 / p95",
        "not paid",
        "longest, s",
    )
    rows = [
        (
            each.name,
            each.num_requests,
            each.num_errors,
            each.num_wrong,
            f"{each.goodput_per_s:.1f}",
            f"{each.tokens_per_s:.0f}",
            each.num_paid,
            ms(each.paid),
            ms(each.unpaid),
            f"{each.max_wait_s:.2f}",
        )
        for each in loads
    ]
    return table(columns, rows)


def _itl_text(mix: Mix) -> str:
    parts = ("median", "p99", "max")
    row = (mix.num_switches, ms(mix.itl_inside, *parts), ms(mix.itl_outside, *parts))
    return table(["switches", "ITL while loading, ms p50 / p99 / max", "else"], [row])


@dataclass(frozen=True, slots=True)
class Contender:
    """The results of one way to serve, in an open loop and in a closed one ("pressed")."""

    name: str
    memory: Memory
    num_switches: int
    ttft: Spread  # in the open loop
    paid: Spread | None  # in the open loop, for requests that waited for a load
    num_errors: int  # failed or wrong answers
    requests_per_s: float  # pressed
    tokens_per_s: float
    pressed_max_wait_s: float


def measure_alternatives(
    experts: Sequence[BundleMember], num: int, users: int, per_s: float, draw: Random
) -> tuple[list[Contender], str]:
    """Sends the same requests to each contender, first in an open loop, then in a closed one."""
    possible = possible_asks(experts)
    arrived, pressed = draw.choices(possible, k=num), draw.choices(possible, k=num)
    after_s = list(accumulate(draw.expovariate(per_s) for _ in range(num)))
    contenders = []
    with servers_alone(experts) as apis:
        texts = texts_alone(apis, possible)

        def run(name: str, port_of: PortOf, served: Sequence[ServedApi]) -> Contender:
            first = arriving(port_of, arrived, after_s)
            second = in_turn(port_of, pressed, users)
            return _contender(name, first, second, texts, Memory.of(served))

        alone = run("a process each", lambda name: apis[name].port, list(apis.values()))
    for name, policy in (
        (f"bundle, room for 2, patience {BUNDLE.patience_s:g} s", BUNDLE),
        ("bundle, room for 2, patience 10 s, residence 2 s", DEFAULTS),
        ("on demand: room for 1, patience 0", ON_DEMAND),
    ):
        with _warm(experts, policy) as server:
            contenders.append(run(name, server.port_of, [server.api]))
    contenders.append(alone)
    return contenders, _contenders_text(contenders)


def _contender(
    name: str, first: Sequence[Reply], second: Sequence[Reply], texts: Texts, memory: Memory
) -> Contender:
    both = [*first, *second]
    ttft = Spread.of([reply.ttft_s for reply in first])
    assert ttft is not None
    return Contender(
        name,
        memory,
        sum(reply.load is not None for reply in both),
        ttft,
        Spread.of([reply.ttft_s for reply in first if reply.is_paid]),
        sum(not right(reply, texts) for reply in both),
        len(second) / duration_s(second),
        sum(reply.num_tokens for reply in second) / duration_s(second),
        max(reply.ttft_s for reply in second),
    )


def _contenders_text(contenders: Sequence[Contender]) -> str:
    columns = (
        "way",
        "memory MiB (PSS)",
        "switches",
        "arriving: TTFT p50 / p95 / max, ms",
        "after a switch p50 / p95",
        "users: requests/s",
        "tokens/s",
        "longest wait, s",
        "lost or wrong",
    )
    rows = [
        (
            each.name,
            f"{each.memory.pss_bytes / MIB:.0f}",
            each.num_switches,
            ms(each.ttft, "median", "p95", "max"),
            ms(each.paid),
            f"{each.requests_per_s:.1f}",
            f"{each.tokens_per_s:.0f}",
            f"{each.pressed_max_wait_s:.2f}",
            each.num_errors,
        )
        for each in contenders
    ]
    return table(columns, rows)
