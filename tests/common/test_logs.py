"""Log lines say which request they are about; a client's id is taken where it fits a line."""

import contextvars
import json
import logging
import logging.config
from collections.abc import Iterator
from datetime import datetime

import pytest

from common.logs import LogFormat, logging_config, new_request_id, request_id, usable_request_id


@pytest.fixture(autouse=True)
def _root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = before, level


def line(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> str:
    """What a logger writes while the request `r1` is served."""

    def serve() -> None:
        request_id.set("r1")
        logging.getLogger("kettle").warning("hot")

    logging.config.dictConfig(logging_config("INFO", log_format))
    contextvars.copy_context().run(serve)
    return capsys.readouterr().err


def test_text_has_time_level_logger_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    time, _, rest = line("text", capsys).partition(" WARNING")
    assert datetime.strptime(time, "%Y-%m-%d %H:%M:%S,%f")
    assert rest == " kettle: hot\n"


def test_json_has_the_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    logged = json.loads(line("json", capsys))
    assert (logged["message"], logged["request_id"]) == ("hot", "r1")


@pytest.mark.parametrize("given", ["", "two words", "line\nbreak", "ü", "x" * 129])
def test_an_id_that_fits_no_header_is_replaced(given: str) -> None:
    assert usable_request_id(given) not in ("", given)


def test_ids_differ() -> None:
    assert usable_request_id("x" * 128) == "x" * 128
    assert len({new_request_id() for _ in range(100)}) == 100
