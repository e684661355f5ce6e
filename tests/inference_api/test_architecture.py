"""The walk of a chat's token in docs/architecture.md is the one that it takes."""

import re
import sys
import threading
from pathlib import Path
from types import FrameType

from inference_api.inference_api_server import create_server, server_of
from inference_api.settings import Settings
from lab.kit.servers import ROOT, eventually

PACKAGE = ROOT / "inference_api"


def named_files() -> set[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, walk = page.partition("## One chat token")
    return set(re.findall(r"`([a-z_/]+\.py)`", walk.partition("\n## ")[0]))


def test_a_chats_token_passes_the_files_that_the_page_names() -> None:
    passed: set[Path] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            passed.add(Path(frame.f_code.co_filename))

    app = create_server(Settings(user_rows=1))
    threading.setprofile(note)  # of the decode thread, which starts below
    server_of(app).start()
    client = app.test_client()
    try:
        eventually(lambda: client.get("/ready").status_code == 200)
        sys.setprofile(note)
        turn = {"role": "user", "content": "hello"}
        tool = {"type": "function", "function": {"name": "f"}}
        asked = {"messages": [turn], "tools": [tool], "max_tokens": 2, "stream": True}
        assert client.post("/v1/chat/completions", json=asked).get_data().endswith(b"[DONE]\n\n")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        server_of(app).stop()
    files = {str(path.relative_to(PACKAGE)) for path in passed if path.is_relative_to(PACKAGE)}
    named = named_files()
    assert len(named) == 20
    assert named <= files
