"""Who drafts for a request of the official OpenAI client, on the embedded model, served with a
source of drafts: what its usage says of them."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from lab.kit.servers import ServedApi
from tests.forked import served

MODEL = "hearth-tiny"
COPY = "Echo this text: Jonas went to Nashville with a clever child."
OF_DRAFTS = {"tokens_per_step", "acceptance_by_depth"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with served(tmp_path_factory.mktemp("drafting") / "log", SPECULATION="ngram") as api:
        yield api


@pytest.fixture(scope="module")
def client(api: ServedApi) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def copied(client: openai.OpenAI, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The text of a greedy copy, and its usage."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": COPY}],
        temperature=0,
        max_tokens=40,
        extra_body=fields,
    )
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.model_dump()


@pytest.mark.parametrize("speculation", ["ngram", "auto", None])
def test_a_copy_is_drafted_and_says_how_well(
    client: openai.OpenAI, speculation: str | None
) -> None:
    text, usage = copied(client, speculation=speculation)
    assert "Jonas went to Nashville" in text
    assert 0 < usage["acceptance_rate"] <= 1
    assert usage["tokens_per_step"] > 1
    shares = usage["acceptance_by_depth"]
    assert 0 < len(shares) <= 8
    assert all(0 <= share <= 1 for share in shares)
    assert shares[0] > 0


def test_a_request_that_wants_no_drafts_has_none(api: ServedApi, client: openai.OpenAI) -> None:
    drafted_text, _ = copied(client)
    before = api.state()["totals"]["drafts"]
    text, usage = copied(client, speculation="off")
    assert text == drafted_text
    assert usage["acceptance_rate"] is None
    assert not usage.keys() & OF_DRAFTS
    assert api.state()["totals"]["drafts"] == before


def test_a_stream_ends_with_the_same_figures(client: openai.OpenAI) -> None:
    _, usage = copied(client)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": COPY}],
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    (streamed,) = [event.usage.model_dump() for event in stream if event.usage is not None]
    for name in (*OF_DRAFTS, "acceptance_rate", "completion_tokens"):
        assert streamed[name] == usage[name]


def test_who_is_not_there_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        copied(client, speculation="draft")
    assert caught.value.param == "speculation"
    assert "give one of 'auto', 'off', 'ngram'" in str(caught.value)
