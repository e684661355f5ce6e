"""What the disk keeps of prompts changes no text: after a restart, without memory, or damaged."""

from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from inference_api.core.loaded_model import LoadedModel
from inference_api.core.state import stored_pages
from inference_api.core.state.page_folder import PageFolder
from inference_api.engine.kernel_runner import KernelRunner
from lab.kit.servers import eventually
from tests.inference_api.core.stepped_server import CONTEXT, NAME, Server, Tokens, text
from tests.inference_api.engine.tiny_models import make_model

TURNS = 4


# Tests that take what others than Llama remember say so.
of_all_kinds = pytest.mark.parametrize(
    "folder", ["llama", "gemma3", "deepseek-v3", "qwen3.5"], indirect=True
)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    name = getattr(request, "param", "llama")
    make_model(name, made, max_position_embeddings=CONTEXT)
    return made


@pytest.fixture(scope="module")
def forgetful(folder: Path) -> Server:
    return Server(folder, prefix_reuse=False)


def with_disk(folder: Path, pages: Path, **settings: object) -> Server:
    return Server(folder, prefix_cache_dir=str(pages), **settings)


def least_memory(server: Server) -> str:
    """Too little for more than one row."""
    runner = server.backend.models[NAME].runner
    assert isinstance(runner, KernelRunner)
    return f"{1.05 * runner.footprint.within(None).cache_bytes / 2**20:.3f}MiB"


@of_all_kinds
def test_a_chat_goes_on_after_each_restart(
    folder: Path, forgetful: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_pages, "READ_BYTES", 1)  # a page in a turn
    prompt, written = text(0, 150), 0  # all but the answer's last token
    for turn in range(TURNS):
        server = with_disk(folder, tmp_path)
        [answer] = server.answers([prompt])
        server.stop()
        assert [answer] == forgetful.answers([prompt])
        assert server.reused_tokens == written
        written = len(prompt) + len(answer) - 1
        prompt += (*answer, *text(turn + 1, 20))


@of_all_kinds
def test_what_memory_has_no_room_for_is_read_again(
    folder: Path, forgetful: Server, tmp_path: Path
) -> None:
    chats = [text(10 + each, 200) for each in range(4)]
    server = with_disk(folder, tmp_path, kv_cache_memory=least_memory(forgetful))
    model = server.backend.models[NAME]
    little = Server(folder, kv_cache_memory=least_memory(forgetful))
    for turn in range(3):
        for number, prompt in enumerate(chats):
            [answer] = forgetful.answers([prompt])
            assert server.answers([prompt]) == little.answers([prompt]) == [answer]
            chats[number] = (*prompt, *answer, *text(30 + 4 * turn + number, 20))
            model.flush_pages(60)
            model.write_pages()
    server.stop()
    assert server.reused_tokens > little.reused_tokens + 1000
    assert model.served.totals.disk_tokens > 1000


@of_all_kinds
def test_rows_read_side_by_side(folder: Path, forgetful: Server, tmp_path: Path) -> None:
    prompts = [text(50, 150) + text(60 + each % 3, 10 * each) for each in range(6)]
    alone = [forgetful.answers([prompt])[0] for prompt in prompts]
    for _ in range(2):
        server = with_disk(folder, tmp_path)
        assert server.answers(prompts) == alone
        server.stop()
    pages = server.backend.models[NAME].rows.pages
    assert pages.counts.held == 0
    pages.forget_cached()
    assert pages.counts.free == pages.counts.total


def test_rows_decode_while_others_are_read(
    folder: Path, forgetful: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, read = [text(100, 300), text(101, 10)], PageFolder._read
    alone = [forgetful.answers([prompt])[0] for prompt in prompts]
    for _ in range(2):
        server = with_disk(folder, tmp_path)
        totals = server.backend.models[NAME].served.totals

        def read_late(*given: Any, has_to_be: int = len(alone[1]), totals: Any = totals) -> bool:
            eventually(lambda: totals.generated_tokens >= has_to_be)
            return read(*given)

        monkeypatch.setattr(PageFolder, "_read", read_late)
        assert server.answers(prompts) == alone
        server.stop()
    assert server.reused_tokens > 0


def test_damage_costs_time_and_no_text(folder: Path, forgetful: Server, tmp_path: Path) -> None:
    prompt = text(70, 300)
    answer = forgetful.answers([prompt])
    for seed in range(4):
        server = with_disk(folder, tmp_path)
        assert server.answers([prompt]) == answer
        server.stop()
        files, draw = sorted(tmp_path.iterdir()), Random(seed)
        broken, content = draw.choice(files), bytearray(draw.choice(files).read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        broken.write_bytes(content)


def test_pages_of_another_model_are_not_read(folder: Path, tmp_path: Path) -> None:
    prompt: Tokens = text(80, 150)
    for settings in ({}, {"kv_cache_dtype": "int8"}, {"quantization": "int8"}):
        server = with_disk(folder, tmp_path, **settings)
        server.answers([prompt])
        server.stop()
        assert server.reused_tokens == 0


def test_salts_share_nothing_on_disk(folder: Path, tmp_path: Path) -> None:
    prompt, said = text(90, 150), []
    for salt, is_found in (("a", False), ("b", False), ("a", True)):
        server = with_disk(folder, tmp_path, kv_cache_dtype="int4")
        said.append(server.answers([prompt], cache_salt=salt))
        server.stop()
        assert (server.reused_tokens > 0) == is_found
    assert said[0] == said[1] == said[2]


def test_a_disk_that_is_stuck_holds_up_no_row(
    folder: Path, forgetful: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, goes_on, read = [text(110, 150), text(111, 150)], Event(), PageFolder._read

    def is_done(model: LoadedModel) -> bool:
        model.wait_for_pages()
        return not model.rows.pages.counts.held

    def read_late(*given: Any) -> bool:
        assert goes_on.wait(60)
        return read(*given)

    monkeypatch.setattr(stored_pages, "MAX_WAIT_S", 0.0)
    for _ in range(2):
        server = with_disk(folder, tmp_path)
        monkeypatch.setattr(PageFolder, "_read", read_late)
        assert server.answers(prompts) == forgetful.answers(prompts)
        assert server.reused_tokens == 0
        model = server.backend.models[NAME]
        goes_on.set()
        eventually(partial(is_done, model))
        server.stop()
        goes_on.clear()
