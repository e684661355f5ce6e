"""Where an answer ends: stop tokens, a least number of tokens, stop strings that are shown."""

from typing import Any

import pytest

from lab.kit.servers import ServedApi

MODEL = "hearth-tiny"
PROMPT = "What is the capital of Kenya?"


def answer(api: ServedApi, **fields: Any) -> tuple[str, str, int]:
    """(text, finish reason, number of tokens) of a greedy answer."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, **fields}
    response = api.post("/v1/chat/completions", model=MODEL, **body)
    assert response.status_code == 200, response.text
    found = response.json()
    choice = found["choices"][0]
    tokens = found["usage"]["completion_tokens"]
    return choice["message"]["content"], choice["finish_reason"], tokens


def ids_of(api: ServedApi, text: str) -> list[int]:
    found = api.post("/tokenize", model=MODEL, prompt=text, add_special_tokens=False).json()
    return list(found["tokens"])


def test_answer_ends_at_a_stop_token_that_is_not_shown(model_api: ServedApi) -> None:
    whole, reason, _ = answer(model_api)
    assert (whole, reason) == ("The capital of Kenya is Nairobi.", "stop")
    first = ids_of(model_api, " Kenya")[0]
    cut, reason, _ = answer(model_api, stop_token_ids=[first])
    assert reason == "stop"
    assert whole.startswith(cut)
    assert len(cut) < len(whole)
    unended, reason, tokens = answer(model_api, ignore_eos=True, max_tokens=40)
    assert (reason, tokens) == ("length", 40)
    assert unended.startswith(whole)


@pytest.mark.parametrize("speculation", ["off", "auto"])
def test_answer_has_its_least_number_of_tokens(model_api: ServedApi, speculation: str) -> None:
    whole, _, tokens = answer(model_api, speculation=speculation)
    least = tokens + 15
    longer, _, longer_tokens = answer(model_api, min_tokens=least, speculation=speculation)
    assert longer_tokens >= least
    assert longer.startswith(whole)
    same, _, same_tokens = answer(model_api, min_tokens=tokens, speculation=speculation)
    assert (same, same_tokens) == (whole, tokens)


def test_no_stop_string_ends_the_first_tokens(model_api: ServedApi) -> None:
    assert answer(model_api, stop="capital") == ("The ", "stop", 2)
    text, _, _ = answer(model_api, stop=["capital", "Nairobi"], min_tokens=4)
    assert text == "The capital of Kenya is "


def test_stop_string_is_shown_where_that_is_asked_for(model_api: ServedApi) -> None:
    text, reason, _ = answer(model_api, stop="Kenya", include_stop_str_in_output=True)
    assert (text, reason) == ("The capital of Kenya", "stop")


def test_stop_tokens_end_constrained_and_sampled_answers_alike(model_api: ServedApi) -> None:
    first = ids_of(model_api, " Kenya")[0]
    for seed in range(5):
        text, _, _ = answer(model_api, temperature=1, seed=seed, stop_token_ids=[first])
        assert "Kenya" not in text
