"""Defaults that a model's own file brings, and what of it is left out."""

import json
import logging
from pathlib import Path

import pytest

from inference_api.errors import StartupError
from inference_api.loading.generation_config import read_defaults


def folder_with(tmp_path: Path, text: str) -> Path:
    (tmp_path / "generation_config.json").write_text(text)
    return tmp_path


def test_known_parameters_are_read_and_others_are_not(tmp_path: Path) -> None:
    given = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None, "do_sample": True}
    folder = folder_with(tmp_path, json.dumps(given | {"max_new_tokens": 7, "eos_token_id": 2}))
    assert read_defaults(folder) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert read_defaults(tmp_path / "model.gguf") == {}


@pytest.mark.parametrize(
    "given",
    [
        '{"temperature": 2.5}', '{"temperature": NaN}', '{"temperature": "warm"}', '{"top_k": 1.5}',
        '{"top_k": -1}', '{"top_p": 1.5}', '{"top_p": true}', '{"repetition_penalty": 0}',
        '{"repetition_penalty": 1e999}', '{"min_p": []}', '{"top_k": 9999999999999999999999}',
    ],
)  # fmt: skip
def test_what_no_request_might_say_is_left_out_and_logged(
    tmp_path: Path, given: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert read_defaults(folder_with(tmp_path, given)) == {}
    assert "is ignored: it is no number from" in caplog.text


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, ""])
def test_file_that_is_no_object_stops_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(StartupError, match=r"generation_config\.json cannot be read"):
        read_defaults(folder_with(tmp_path, text))
