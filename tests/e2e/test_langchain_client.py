"""LangChain's OpenAI integration against the mock server: a second client that people use."""

from typing import Any

import openai
import pytest

from lab.kit.servers import ServedApi

MODEL = "hearth-tiny"
ECHO = "System: Be brief.\nUser: hello\nAI: "  # what the mock makes of it
TURNS = [("system", "Be brief."), ("human", "hello")]


@pytest.fixture(scope="module")
def api(mock_api: ServedApi) -> ServedApi:
    return mock_api


def chat(api: ServedApi, **options: Any) -> Any:
    from langchain_openai import ChatOpenAI  # seconds, of each worker's

    settings: dict[str, Any] = {"model": MODEL, "api_key": "none", "max_retries": 0}
    return ChatOpenAI(base_url=f"{api.url}/v1", **settings | options)


def completions(api: ServedApi, **options: Any) -> Any:
    from langchain_openai import OpenAI

    settings: dict[str, Any] = {"model": MODEL, "api_key": "none", "max_retries": 0}
    return OpenAI(base_url=f"{api.url}/v1", **settings | options)


def test_chat_is_answered_with_its_usage(api: ServedApi) -> None:
    answer = chat(api).invoke(TURNS)
    assert answer.content == ECHO
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == len(ECHO)


def test_chat_is_streamed_piece_by_piece(api: ServedApi) -> None:
    pieces = list(chat(api, stream_usage=True).stream(TURNS))
    assert "".join(str(piece.content) for piece in pieces) == ECHO
    assert len([piece for piece in pieces if piece.content]) == len(ECHO)
    (usage,) = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert usage["total_tokens"] == 2 * len(ECHO)


def test_chat_takes_stop_seed_and_limits(api: ServedApi) -> None:
    assert chat(api, stop=["User"], seed=7).invoke(TURNS).content == "System: Be brief.\n"
    limited = chat(api, max_tokens=6, temperature=0.5, top_p=0.9).invoke(TURNS)
    assert limited.content == ECHO[:6]
    assert limited.response_metadata["finish_reason"] == "length"


def test_batch_of_chats_keeps_its_order(api: ServedApi) -> None:
    texts = [f"number {number}" for number in range(8)]
    answers = chat(api).batch(list(texts))
    assert [answer.content for answer in answers] == [f"User: {text}\nAI: " for text in texts]


def test_completion_is_answered(api: ServedApi) -> None:
    assert completions(api, max_tokens=4).invoke("good morning") == "good"


def test_completion_is_streamed(api: ServedApi) -> None:
    pieces = list(completions(api).stream("good morning"))
    assert "".join(pieces) == "good morning"
    assert len([piece for piece in pieces if piece]) == len("good morning")


def test_unknown_model_is_the_clients_not_found(api: ServedApi) -> None:
    with pytest.raises(openai.NotFoundError):
        chat(api, model="gpt-5").invoke(TURNS)


def test_calls_are_refused_and_not_forgotten_where_they_cannot_be_held(api: ServedApi) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match=r"tool_choice needs a model with a tokenizer"):
        chat(api).bind_tools([tool], tool_choice="required").invoke(TURNS)
    assert "look" in str(chat(api).bind_tools([tool]).invoke(TURNS).content)  # the mock's echo
