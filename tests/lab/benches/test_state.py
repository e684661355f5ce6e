"""What the benches of agents and of long contexts make and compute, without their models."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from lab.benches.state.agents import Agent, Reply, Server, play, servers_table, turns_table
from lab.benches.state.context import Figures, doubling, num_preemptions, table, too_slow
from lab.benches.state.conversation import Sizes, opening, turn
from lab.benches.state.memory import cache_for
from lab.kit.servers import MOCK_APP, served
from lab.models.random_model import SHAPES, make_random_model
from lab.peers.contest import Took

SIZES = Sizes(system=120, result=10, answer=6, turns=4)


def test_agents_share_the_system_prompt_alone() -> None:
    (system, task), (same, other) = (opening(agent, SIZES) for agent in "ab")
    assert system == same
    assert len(system["content"].split()) > SIZES.system
    assert task["role"] == other["role"] == "user"
    assert task["content"] != other["content"]


def test_a_turn_is_an_answer_its_call_and_the_result_of_that() -> None:
    said, result = turn("a", 2, "I look.", SIZES)
    (call,) = said["tool_calls"]
    assert (said["role"], said["content"]) == ("assistant", "I look.")
    assert (result["role"], result["tool_call_id"]) == ("tool", call["id"])
    assert len(result["content"].split()) == SIZES.result
    every = [turn(agent, number, "", SIZES)[1]["content"] for agent in "ab" for number in range(4)]
    assert len(set(every)) == len(every)
    assert turn("a", 2, "I look.", SIZES) == [said, result]


def test_sizes_shrink_alike_where_the_context_is_short() -> None:
    assert SIZES.within(SIZES.context) == SIZES
    long = replace(SIZES, system=12_000, result=100, answer=50)
    fitting = long.within(4096)
    assert 4096 - 2 * SIZES.turns <= fitting.context <= 4096
    assert fitting.system / long.system == pytest.approx(fitting.result / long.result, rel=0.05)


def test_agents_send_their_whole_conversations(tmp_path: Path) -> None:
    sizes = Sizes(system=20, result=4, answer=3, turns=2)
    with served(tmp_path / "log", MOCK_APP) as api:
        agents = [Agent(name, sizes) for name in "ab"]
        server = Server("mock", api.port, agents, Agent("alone", sizes))
        play([server], sizes.turns)
    assert None not in server.texts
    assert len(server.lone.replies) == len(agents[0].replies) == 2
    first, second = (sum(r.prompt_tokens for r in server.replies(slice(n, n + 1))) for n in (0, 1))
    assert second > first


def answered(name: str, ttft_s: float, computed: int, last: Reply | None) -> Server:
    """Two agents and a lone one, of two turns."""
    replies = [Reply(100, 0, 1.0, "a"), Reply(200, 200 - computed, ttft_s, "b")]
    every = [Agent(each, SIZES) for each in ("0", "1", "alone")]
    for agent in every:
        agent.replies += replies
    every[1].replies[-1] = last
    every[2].replies[-1] = Reply(200, 190, 0.1, "b")
    return Server(name, 0, every[:2], every[2])


def test_tables_tell_what_was_answered_computed_and_as_fast_as_alone() -> None:
    servers = [
        answered("hearth, little", 0.12, 8, last=None),
        answered("hearth, endless", 0.1, 8, last=Reply(200, 192, 0.2, "c")),
    ]
    servers[0].after_restart = [Reply(250, 240, 0.3, "d")]
    *_, second = turns_table(servers, 2).splitlines()
    assert second == "| 2 | one by one | 200 | 8 (4.0%) | 16 (4.0%) |"
    *_, little, endless = servers_table(servers).splitlines()
    assert little == (
        "| hearth, little | 3 of 4 | 8 (4.0%) | 1000 / 1000 |  | 120 / 120 | 100 / 100 | 1.20 "
        "| 3 of 4 | 10 (4.0%) | 300 / 300 | 2.50 |"
    )
    assert endless == (
        "| hearth, endless | 4 of 4 | 16 (4.0%) | 1000 / 1000 |  | 150 / 195 | 100 / 100 | 1.50 "
        "|  |  |  |  |"
    )


def test_contexts_double() -> None:
    assert doubling(4096, 16_384) == [4096, 8192, 16_384]
    assert doubling(4096, 16_383) == [4096, 8192]
    assert doubling(4096, 2048) == []


def test_who_once_took_too_long_is_named() -> None:
    seconds = {1024: {"ours": 1.0, "slow": 4.0, "slower": 7.0}, 2048: {"ours": 2.0, "slow": 7.0}}
    measured = [
        Figures(name, context, [Took(took_s, took_s / 2)], 1)
        for context, by_name in seconds.items()
        for name, took_s in by_name.items()
    ]
    assert too_slow(measured, 6.0) == {"slower"}
    assert too_slow(measured, 3.5) == {"slow", "slower"}
    assert too_slow([], 6.0) == set()


def test_a_row_says_what_memory_grew_for_a_token() -> None:
    turns = [Took(3.0, 2.0), Took(6.0, 4.0), Took(4.5, 3.0)]
    measured = [
        Figures(name, context, turns, (context + extra) * 2048)
        for context in (1024, 2048)
        for name, extra in (("ours", 0), ("other", 512))
    ]
    rows = table(measured).splitlines()[2:]
    assert rows == [
        "| 1024 | ours | 330.7 | 3.00 | 20.67 | 2 |  |",
        "| 1024 | other | 330.7 | 3.00 | 20.67 | 3 |  |",
        "| 2048 | ours | 672.0 | 3.00 | 20.67 | 4 | 2.0 |",
        "| 2048 | other | 672.0 | 3.00 | 20.67 | 5 | 2.0 |",
    ]


def test_pauses_are_those_of_all_models() -> None:
    lines = ('_total{model_name="a"} 3.0', '_total{model_name="b"} 1.0', "_created 1.7e+09")
    metrics = "\n".join(chain(["# HELP x"], (f"vllm:num_preemptions{line}" for line in lines)))
    assert num_preemptions(metrics) == 4
    assert num_preemptions("vllm:num_requests_running 1.0") is None


def test_a_cache_has_room_for_its_tokens(tmp_path: Path) -> None:
    make_random_model(SHAPES["tiny"], tmp_path)  # 2 layers x 2 heads x 2 x (32 + 4): 288 bytes
    assert cache_for(tmp_path, 2**17) == {"KV_CACHE_MEMORY": "36MiB"}
    assert cache_for(tmp_path, 2**17 + 64) == {"KV_CACHE_MEMORY": "37MiB"}
