"""The bench of clients: its records, and one run with the SDK that the tests have."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.clients.client import MODEL, Client, all_clients
from lab.clients.model import CONTEXT_TOKENS, make_model
from lab.clients.run import run
from lab.clients.steering import Call
from lab.clients.table import Line, line_of, together, write_table
from lab.kit.servers import ServedApi, served

KEYS = {"OPENAI_BASE_URL": "$url/v1", "OPENAI_API_KEY": "made-up"}
READ = Call("read_note", {"path": "note.txt"})
COMMAND = (sys.executable, "$scripts/openai_chat.py", "$prompt")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    folder = tmp_path_factory.mktemp("clients")
    make_model(folder / MODEL)
    with served(folder / "log", MODEL=folder / MODEL, MAX_SEQ_LEN=CONTEXT_TOKENS) as api:
        yield api


@pytest.mark.parametrize("client", all_clients(), ids=lambda client: f"{client.name} {client.api}")
def test_every_package_has_its_version(client: Client) -> None:
    for package in client.packages:
        assert re.search(r"[^@=][@=]=?\d+(\.\d+)+$", package), package


def test_a_client_makes_the_planned_call_and_ends(api: ServedApi, tmp_path: Path) -> None:
    client = Client(
        name="a", api="b", pip=["c==1.0"], command=COMMAND, environment=KEYS, calls=[READ]
    )
    ran = run(client, tmp_path, api.url, tmp_path / "run")
    line = line_of(client, ran)
    assert not line.faults, (tmp_path / "run" / "log").read_text()
    assert str(line).startswith("| a | 1.0 | `b` | yes |")
    assert [exchange.status for exchange in ran.exchanges] == [200, 200]


def test_what_is_refused_is_said_as_the_server_says_it(api: ServedApi, tmp_path: Path) -> None:
    unknown = Client(
        name="a", api="b", command=(*COMMAND[:-1], ""), environment=KEYS, calls=[READ], pip=["c==1"]
    )
    line = line_of(unknown, run(unknown, tmp_path, f"{api.url}/nowhere", tmp_path / "run"))
    assert line.faults
    assert "`/v1/chat/completions` 404" in line.faults[0]
    assert "0 of 1 calls made" in line.faults


def test_of_several_sessions_the_line_says_whatever_one_showed() -> None:
    client = Client(name="a", api="b")
    well, ill = Line(client, ignored=["x"]), Line(client, ["y"], ["it ended with 1"], ["r"])
    assert together([well, ill, ill]) == Line(client, ["x", "y"], ["it ended with 1"], ["r"])
    assert not together([well, well]).faults


def test_the_table_goes_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- clients: begin -->\nold\n<!-- clients: end -->\nafter\n")
    write_table(page, "| new |")
    expected = "before\n<!-- clients: begin -->\n| new |\n<!-- clients: end -->\nafter\n"
    assert page.read_text() == expected
