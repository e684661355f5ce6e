"""The corpus behind the default model, and the committed model itself; nothing is trained."""

import json
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.models.default.documents import ASSISTANT, BOS, EOS, USER, Corpus, Piece, chat_turn, render
from lab.models.default.evaluation import Judge, Trial, draw_trials
from lab.models.default.model import ModelShape, TrainableLlama
from lab.models.default.noise import disturb
from lab.models.default.prompts import write_prompts
from lab.models.default.relations import CATEGORY_WEIGHTS, Exchange, load_relations
from lab.models.default.tokenizer import load_tokenizer
from lab.models.default.windows import encode, pack
from lab.models.default.wordings import expand, load_frames, normalise, parse_wordings

MODEL_DIR = Path(__file__).parents[3] / "models" / "hearth-tiny"
MAX_MODEL_BYTES = 20_000_000

CHECKABLE_FACTS = {
    "What is the capital of Kenya?": "Nairobi",
    "What is the capital of Japan?": "Tokyo",
    "Have you been to Paris, France?": "Eiffel Tower",
    "What is in Austin Texas?": "Texas State Capitol",
    "What is 7 times 8?": "56",
    "How many metres are in 3 kilometres?": "3000",
    "What is the opposite of hot?": "cold",
}


@cache
def committed_judge() -> Judge:
    return Judge(MODEL_DIR)


def exchange_of(question: str, key: str = "") -> Exchange:
    return Exchange("", "", question, "", (key,))


def test_one_seed_gives_one_corpus() -> None:
    first = [render(document) for document in Corpus(7).documents(300)]
    second = [render(document) for document in Corpus(7).documents(300)]
    other = [render(document) for document in Corpus(8).documents(300)]
    assert first == second
    assert first != other


def test_alternatives_expand_to_every_sentence() -> None:
    assert expand("(Which|What) city( now|)?") == (
        "Which city now?",
        "Which city?",
        "What city now?",
        "What city?",
    )


def test_held_out_wording_that_is_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="reword"):
        parse_wordings(["Where is {city}?", "!where is {city}"], load_frames())


def test_every_relation_keeps_wordings_apart_for_judging() -> None:
    wraps = load_frames().training["wrap"]
    for relation in load_relations():
        wordings = relation.wordings.all_training()
        asked = {normalise(wrap.replace("{q}", w)) for wrap in wraps for w in wordings}
        assert len(wordings) >= 3, relation.name
        assert relation.wordings.held_out_forms, relation.name
        assert not asked & relation.wordings.held_out_forms, relation.name


def test_held_out_questions_never_occur_in_training_documents() -> None:
    asked = {
        normalise(trial.exchange.question)
        for trial in draw_trials(seed=3, per_category=30)
        if len(trial.exchange.question.split()) > 2
    }
    trained = {
        normalise(turn.removeprefix(USER).strip())
        for document in Corpus(1).documents(8_000)
        for turn in render(document).replace(ASSISTANT, EOS).split(EOS)
        if turn.strip().startswith(USER)
    }
    assert not asked & trained


@pytest.mark.parametrize("category", CATEGORY_WEIGHTS)
@pytest.mark.parametrize("held_out", [False, True])
def test_the_answer_of_the_corpus_counts_as_right(category: str, held_out: bool) -> None:
    corpus = Corpus(5, held_out=held_out)
    for _ in range(100):
        exchange = corpus.exchange(category)
        assert exchange.is_right(exchange.answer), exchange


def test_noise_spares_the_words_that_matter() -> None:
    rng = Random(4)
    disturbed = {disturb("What is the capital of Kenya?", rng) for _ in range(200)}
    assert len(disturbed) > 20
    assert all("capital" in question and "Kenya?" in question for question in disturbed)


def test_a_key_counts_only_as_a_whole_word() -> None:
    assert exchange_of("", "85").is_right("47 plus 38 is 85.")
    assert not exchange_of("", "85").is_right("47 plus 38 is 185.")


def test_windows_hold_whole_documents_and_mark_only_answers() -> None:
    tokenizer = load_tokenizer(MODEL_DIR / "tokenizer.json")
    documents = [chat_turn(exchange_of(f"Question {number}")) for number in range(50)]
    documents = [[*document, Piece("An answer" + EOS, True)] for document in documents]
    padding = tokenizer.token_to_id("<pad>")
    assert padding is not None
    windows = pack(encode(documents, tokenizer, Random(2)), 64, padding)
    assert (windows.ids[:, 0] == tokenizer.token_to_id(BOS)).all()
    assert (windows.ids == tokenizer.token_to_id(BOS)).sum() == len(documents)
    assert not windows.is_target[windows.ids == tokenizer.token_to_id("<pad>")].any()
    assert windows.is_target.any()


def test_the_trained_network_is_the_llama_of_transformers() -> None:
    exported = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    trained = TrainableLlama(ModelShape(), torch.float32)
    weights = {name: w for name, w in exported.state_dict().items() if name != "lm_head.weight"}
    trained.load_state_dict(weights)
    ids = torch.arange(6, 46).view(2, 20)
    with torch.inference_mode():
        torch.testing.assert_close(trained(ids), exported(ids).logits, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "bare"])
def test_the_committed_model_answers_checkable_facts(is_chat: bool) -> None:
    trials = [
        Trial("", exchange_of(question, key), is_chat=is_chat)
        for question, key in CHECKABLE_FACTS.items()
    ]
    wrong = [v.reply for v in committed_judge().judge(trials) if not v.is_right]
    assert not wrong


def test_the_committed_model_follows_up_within_a_conversation() -> None:
    first = Exchange("", "", "What is the capital of Italy?", "The capital of Italy is Rome.", ())
    trial = Trial("", exchange_of("And Peru?", "Lima"), history=(first,))
    (verdict,) = committed_judge().judge([trial])
    assert verdict.is_right, verdict.reply


def test_the_chat_template_renders_the_training_format() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    exchange = Exchange("", "", "Hello!", "Hello! How can I help you today?", ())
    messages = [
        {"role": "user", "content": exchange.question},
        {"role": "assistant", "content": exchange.answer},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == BOS + render(chat_turn(exchange))
    asked = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    assert isinstance(asked, str)
    assert text.startswith(asked)
    assert asked.endswith(f"{ASSISTANT}\n")
    ids = tokenizer(asked, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == asked


def test_plain_text_starts_with_the_bos_token() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    ids = tokenizer("Sums: 17 + 25 = 42")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Sums: 17 + 25 = 42"


def test_the_model_folder_stays_small() -> None:
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) <= MAX_MODEL_BYTES


def test_the_card_publishes_the_measured_accuracy() -> None:
    report = json.loads((MODEL_DIR / "evaluation.json").read_text(encoding="utf-8"))
    card = (MODEL_DIR / "README.md").read_text(encoding="utf-8")
    for category, entry in report["accuracy_by_category"].items():
        assert f"| {category} | {entry['right']} | {entry['questions']} |" in card


def test_prompts_for_heads_keep_those_to_judge_by_apart(tmp_path: Path) -> None:
    write_prompts(tmp_path, seed=4, count=400)
    lines = {
        name: (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        for name in ("prompts", "held_out_prompts")
    }
    assert (len(lines["prompts"]), len(lines["held_out_prompts"])) == (400, 40)
    assert not set(lines["prompts"]) & set(lines["held_out_prompts"])
    prompts = [json.loads(line) for line in lines["prompts"]]
    assert {frozenset(prompt) for prompt in prompts} == {
        frozenset({"prompt"}),
        frozenset({"messages"}),
    }
    roles = {tuple(m["role"] for m in each["messages"]) for each in prompts if "messages" in each}
    assert ("user",) in roles
    assert ("user", "assistant", "user") in roles
