"""The experts' topics, how an expert is made, and the committed experts themselves."""

import json
import re
import sqlite3
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from lab.models.default.documents import ASSISTANT, EOS, USER, Corpus, render
from lab.models.default.evaluation import Judge
from lab.models.default.relations import Exchange
from lab.models.default.training import TrainingPlan, start_from
from lab.models.default.wordings import normalise
from lab.models.experts.__main__ import main
from lab.models.experts.making import Recipe, make, topic_trials
from lab.models.experts.queries import SCHEMA
from lab.models.experts.topics import load_topics
from scripts.fetch_smollm2 import SMOLLM2

MODELS = Path(__file__).parents[3] / "models"
BASE = MODELS / "hearth-tiny"
TOPICS = load_topics()
MAX_WEIGHT_BYTES = 10_000_000
STEP = re.compile(r"(\d+) (plus|minus|times|divided by) (\d+) is (\d+)")


@cache
def judge_of(model_dir: Path) -> Judge:
    return Judge(model_dir)


def exchanges(name: str, *, held_out: bool, count: int = 300) -> list[Exchange]:
    corpus = Corpus(5, held_out=held_out, topic=TOPICS[name].relations)
    return [corpus.exchange(name) for _ in range(count)]


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize("held_out", [False, True])
def test_the_answer_of_the_corpus_counts_as_right(name: str, held_out: bool) -> None:
    for exchange in exchanges(name, held_out=held_out):
        assert exchange.is_right(exchange.answer), exchange


@pytest.mark.parametrize("name", TOPICS)
def test_most_of_the_corpus_is_the_topic_and_held_out_questions_never_occur(name: str) -> None:
    asked = {normalise(exchange.question) for exchange in exchanges(name, held_out=True)}
    relations = TOPICS[name].relations
    corpus = Corpus(1, topic=relations)
    drawn = [corpus.exchange().category == name for _ in range(1000)]
    assert 0.75 < sum(drawn) / len(drawn) < 0.85
    trained = {
        normalise(turn.removeprefix(USER).strip())
        for document in corpus.documents(4_000)
        for turn in render(document).replace(ASSISTANT, EOS).split(EOS)
        if turn.strip().startswith(USER)
    }
    assert not asked & trained


def test_every_step_of_a_sum_is_right() -> None:
    for exchange in exchanges("sums", held_out=False):
        steps = STEP.findall(exchange.answer)
        assert steps, exchange
        for a, sign, b, result in steps:
            left, right, c = int(a), int(b), int(result)
            expected = {"plus": left + right, "minus": left - right, "times": left * right}
            assert c == expected.get(sign, left // right), exchange
            assert sign != "divided by" or left % right == 0


def test_records_hold_what_the_text_says() -> None:
    for exchange in exchanges("records", held_out=False):
        if exchange.relation == "records.csv":
            values = re.split("[,\n]", exchange.answer.removeprefix("Name,Age,City\n"))
        else:
            record = json.loads(exchange.answer)
            people = record if isinstance(record, list) else []
            values = [str(value) for person in people for value in person.values()]
        assert all(value in exchange.question for value in values), exchange


def test_every_query_runs_on_its_schema() -> None:
    with sqlite3.connect(":memory:") as database:
        for table, (texts, numbers) in SCHEMA.items():
            database.execute(f"CREATE TABLE {table} ({', '.join((*texts, *numbers))})")
        for exchange in exchanges("sql", held_out=False):
            assert database.execute(exchange.answer).description, exchange  # it asks for columns
    database.close()


def test_training_starts_from_the_weights_of_the_base(tmp_path: Path) -> None:
    start_from(BASE, tmp_path)
    checkpoint = torch.load(tmp_path / "checkpoint.pt")
    assert checkpoint["step"] == 0
    weights = load_file(BASE / "model.safetensors")
    assert checkpoint["model"].keys() == weights.keys()
    assert all(torch.equal(checkpoint["model"][name], weights[name].float()) for name in weights)


def test_an_expert_is_made_in_the_layout_of_its_base(tmp_path: Path) -> None:
    recipe = Recipe(BASE, seed=1, topic_questions=4, other_questions=0)
    plan = TrainingPlan(
        tmp_path / "work", tokens=20 * 1024, tokens_per_step=1024, num_processes=1, compile=False
    )
    model_dir = tmp_path / "sql"
    make(TOPICS["sql"], recipe, plan, model_dir)
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        assert (model_dir / name).read_bytes() == (BASE / name).read_bytes()
    made, base = (load_file(folder / "model.safetensors") for folder in (model_dir, BASE))
    assert {n: (w.shape, w.dtype) for n, w in made.items()} == {
        n: (w.shape, w.dtype) for n, w in base.items()
    }
    assert any(not torch.equal(made[name], base[name]) for name in base)
    assert "{" not in (model_dir / "README.md").read_text(encoding="utf-8")
    assert json.loads((model_dir / "evaluation.json").read_text())["expert"]["topic"]["questions"]


def test_an_unknown_expert_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["poet"])
    assert "no expert poet; known: sums, records, sql" in capsys.readouterr().err


@pytest.mark.parametrize("name", TOPICS)
def test_a_committed_expert_is_small_and_its_card_publishes_what_was_measured(name: str) -> None:
    folder = MODELS / "experts" / name
    assert (folder / "model.safetensors").stat().st_size <= MAX_WEIGHT_BYTES
    report = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    shares = [f"{100 * report[model]['topic']['accuracy']:.1f} %" for model in ("expert", "base")]
    assert f"| {report['expert']['topic']['questions']} | {' | '.join(shares)} |" in card


@pytest.mark.parametrize("name", TOPICS)
def test_a_committed_expert_answers_its_topic_better_than_the_base(name: str) -> None:
    trials = topic_trials(TOPICS[name], seed=11, count=40)
    expert, base = (
        sum(verdict.is_right for verdict in judge_of(folder).judge(trials))
        for folder in (MODELS / "experts" / name, BASE)
    )
    assert expert >= base + 16


@pytest.mark.parametrize("bundle", ["bundle.yaml", "bundle-smollm2.yaml"])
def test_an_example_bundle_has_the_base_and_every_expert(bundle: str) -> None:
    entries = yaml.safe_load((MODELS / bundle).read_text(encoding="utf-8"))["experts"]
    sources = {entry["name"]: (MODELS / entry["source"]).resolve() for entry in entries}
    fetched = sources.pop("smollm2", SMOLLM2.resolve())
    assert fetched == SMOLLM2.resolve()
    assert sources == {"hearth-tiny": BASE} | {name: MODELS / "experts" / name for name in TOPICS}
