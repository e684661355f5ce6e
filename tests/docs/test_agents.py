"""The pages of docs/agents say what `hearth agent` prints, and so does the table at /docs."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from inference_api.agents import agents, table
from inference_api.apis.openapi import API

TOP = Path(__file__).parents[2]
FOLDER = TOP / "docs" / "agents"
URL, MODEL, CONTEXT_TOKENS = "http://127.0.0.1:1223", "qwen3-8b", 65_536


def blocks(text: str, language: str) -> list[str]:
    return [part.partition("```")[0] for part in text.split(f"```{language}\n")[1:]]


@pytest.mark.parametrize("name", agents())
def test_page_has_what_the_command_prints(name: str) -> None:
    page = (FOLDER / f"{name}.md").read_text()
    agent = agents()[name]
    assert agent.filled_in(URL, MODEL, CONTEXT_TOKENS) in page
    assert f"`{agent.route}`" in page
    assert f"`hearth agent {name}`" in page
    if agent.first_prompt_tokens:
        assert f"{agent.first_prompt_tokens:,} tokens" in page


def test_every_program_has_a_page_in_the_site() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*agents()}
    site = (TOP / "mkdocs.yml").read_text()
    assert [name for name in agents() if f"agents/{name}.md" not in site] == []
    readme = (TOP / "README.md").read_text()
    assert [name for name in agents() if f"docs/agents/{name}.md" not in readme] == []


def test_table_is_at_docs() -> None:
    assert table() in API.description
    assert table().count("\n") == 2 + len(agents())


@pytest.mark.parametrize("name", agents())
@pytest.mark.parametrize("model", ["owner/model:q4", "modèle 🔥", 'a "name" of $HOME, it\'s \\odd'])
def test_names_are_quoted_as_each_place_reads_them(name: str, model: str) -> None:
    text = agents()[name].filled_in(URL, model, CONTEXT_TOKENS)
    for block in blocks(text, "json"):
        assert json.dumps(model) in json.dumps(json.loads(block))
    for block in blocks(text, "toml"):
        assert tomllib.loads(block)["model"] == model
    for block in blocks(text, "yaml"):
        assert yaml.safe_load(block)["models"][0]["model"] == model
    for block in blocks(text, "sh"):
        words = shlex.split(block, comments=True)
        if any("MODEL" in word or "model" in word for word in words):
            assert any(word.endswith(model) for word in words)
