"""The official OpenAI client against the mock server: what it sends is understood, what it gets
it understands."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import requests

from lab.kit.servers import MOCK_APP, TIMEOUT_S, ServedApi, eventually, post_bytes
from tests.forked import served

MODEL = "hearth-tiny"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ECHO = "User: hello\nAI: "  # what the mock makes of it


@pytest.fixture(scope="module")
def api(mock_api: ServedApi) -> ServedApi:
    return mock_api


def test_models_are_listed_and_found_by_id(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "falcon40b"]
    found = client.models.retrieve("falcon40b")
    assert (found.id, found.model_dump()["max_model_len"]) == ("falcon40b", 2048)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ECHO
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ECHO), len(ECHO))
    assert answer.usage.total_tokens == 2 * len(ECHO)


@pytest.fixture(scope="module", params=["deployments", "v1"])
def azure(api: ServedApi, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    address, version = api.url, "2024-10-21"
    with (
        openai.OpenAI(base_url=f"{address}/openai/v1/", api_key="none", max_retries=0)
        if request.param == "v1"
        else openai.AzureOpenAI(
            azure_endpoint=address, api_key="none", api_version=version, max_retries=0
        )
    ) as azure:
        yield azure


def test_azures_client_is_answered_as_openais_is(
    client: openai.OpenAI, azure: openai.OpenAI
) -> None:
    if not isinstance(azure, openai.AzureOpenAI):
        assert [model.id for model in azure.models.list()] == [MODEL, "falcon40b"]
    for each in (client, azure):
        chat = each.chat.completions.create(model=MODEL, messages=HELLO)
        assert (chat.model, chat.choices[0].message.content) == (MODEL, ECHO)
        streamed = each.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in streamed) == ECHO
        assert each.completions.create(model=MODEL, prompt="hello").choices[0].text == "hello"
        assert each.responses.create(model=MODEL, input="hello").output_text == ECHO
        with pytest.raises(openai.BadRequestError, match="has no hidden states"):
            each.embeddings.create(model=MODEL, input="hello")


def test_a_deployment_counts_for_more_than_the_bodys_model(api: ServedApi) -> None:
    for model in ({"model": "gpt-4o"}, {"model": None}, {}):
        path = "/openai/deployments/falcon40b/chat/completions?api-version=1"
        assert api.post(path, messages=HELLO, **model).json()["model"] == "falcon40b"
    prompts: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": HELLO},
        "completions": {"prompt": "a"},
        "embeddings": {"input": "a"},
    }
    for path, prompt in prompts.items():
        answer = api.post(f"/openai/deployments/nobody%2Fs/{path}", model=MODEL, **prompt)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert "'nobody/s'" in answer.json()["message"]


def test_usage_carries_the_servers_own_times(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.usage is not None
    times: Any = answer.usage.model_dump()
    assert 0 < times["time_to_first_token"] <= times["total_latency"]
    assert times["completion_tokens_after_first_per_sec"] > 0
    assert times["completion_tokens_after_first_per_sec_first_ten"] > 0
    assert times["batch_size_used"] == 1


def test_streamed_chat_ends_with_finish_usage_and_done(
    api: ServedApi, client: openai.OpenAI
) -> None:
    with client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_completion_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    *pieces, finish, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == ECHO[:5]
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[0].choices[0].delta.content
    assert finish.choices[0].finish_reason == "length"
    assert finish.choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 5
    body = {"model": MODEL, "messages": HELLO, "stream": True}
    raw = requests.post(f"{api.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    assert raw.headers["Content-Type"].startswith("text/event-stream")
    assert raw.text.endswith("data: [DONE]\n\n")


def test_usage_comes_in_every_chunk_on_request(api: ServedApi) -> None:
    body = {
        "model": MODEL,
        "prompt": "abc",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    lines = requests.post(f"{api.url}/v1/completions", json=body, timeout=TIMEOUT_S).text.split(
        "\n\n"
    )
    counts = [line.count('"completion_tokens":') for line in lines if "choices" in line]
    assert counts == [1] * len(counts)


def test_completion_of_text_and_of_token_ids(client: openai.OpenAI) -> None:
    text = client.completions.create(model=MODEL, prompt="good morning", max_tokens=4)
    ids = client.completions.create(model=MODEL, prompt=list(b"good morning"), max_tokens=4)
    assert text.object == "text_completion"
    assert text.choices[0].text == ids.choices[0].text == "good"
    assert text.choices[0].finish_reason == "length"


def test_completion_has_sixteen_tokens_unless_told_otherwise(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt="x" * 40).choices[0].text == "x" * 16


def test_several_prompts_and_several_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["one", "three"], n=2)
    assert [choice.text for choice in answer.choices] == ["one", "one", "three", "three"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 16)


def test_lm_evals_256_prompts_in_one_call_need_no_256_places(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = tmp_path_factory.mktemp("prompts") / "log"
    prompts = [f"prompt {number}" for number in range(256)]
    with served(log, MOCK_APP, USER_ROWS=2, MAX_INPUT_QSIZE=2) as api:
        answer = api.post("/v1/completions", model=MODEL, prompt=prompts, max_tokens=20)
        assert [choice["text"] for choice in answer.json()["choices"]] == prompts
        body = json.dumps({"model": MODEL, "prompt": ["x" * 900] * 256, "max_tokens": 900}).encode()
        leaving = api.send_raw(post_bytes("/v1/completions", body))
        eventually(lambda: api.state()["queued"] == 1)  # half of the places are others'
        assert api.post("/v1/completions", model=MODEL, prompt="hi", max_tokens=1).ok
        leaving.close()
        eventually(api.is_idle)


def test_streamed_completion(client: openai.OpenAI) -> None:
    with client.completions.create(model=MODEL, prompt="flow", stream=True) as stream:
        chunks = list(stream)
    assert [chunk.choices[0].text for chunk in chunks] == ["f", "l", "o", "w", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 4 + ["stop"]


def test_stop_text_parts_and_the_developer_role(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "he"}]},
        ],
        stop=["he"],
    )
    assert answer.choices[0].message.content == "System: Be brief.\nUser: "


def test_tokens_out_and_back(api: ServedApi) -> None:
    for root in ("/v1", ""):  # at the root too, as vLLM has them
        tokens = api.post(f"{root}/tokenize", prompt="hé").json()
        ids = list("hé".encode())
        assert tokens == {"count": 3, "max_model_len": 2048, "tokens": ids, "token_strs": None}
        assert api.post(f"{root}/detokenize", tokens=ids).json() == {"prompt": "hé"}


def test_stream_carries_several_choices(client: openai.OpenAI) -> None:
    with client.completions.create(model=MODEL, prompt=["ab", "xyz"], n=2, stream=True) as stream:
        chunks = list(stream)
    texts = ["", "", "", ""]
    reasons: list[str | None] = [None] * 4
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason
    assert texts == ["ab", "ab", "xyz", "xyz"]
    assert reasons == ["stop"] * 4
    assert [chunk.choices[0].index for chunk in chunks[:4]] == [0, 1, 2, 3]


def test_every_choice_of_a_streamed_chat_says_whose_turn_it_is(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=HELLO, n=2, max_completion_tokens=3, stream=True
    ) as stream:
        roles = [(c.choices[0].index, c.choices[0].delta.role) for c in stream]
    assert [each for each in roles if each[1]] == [(0, "assistant"), (1, "assistant")]


def test_logprobs_of_completions_and_chat(client: openai.OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt="abc", logprobs=1)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c"]
    assert logprobs.token_logprobs == [0.0] * 3
    assert logprobs.top_logprobs == [{"a": 0.0}, {"b": 0.0}, {"c": 0.0}]
    assert logprobs.text_offset == [0, 1, 2]
    chat = client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=1, max_completion_tokens=2
    )
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    first = chat.choices[0].logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("U", 0.0, [ord("U")])
    assert first.top_logprobs[0].token == "U"


def test_logprobs_of_what_a_stop_string_cut_off_are_left_out(client: openai.OpenAI) -> None:
    for is_streamed in (False, True):
        answer: Any = client.completions.create(
            model=MODEL, prompt="abcdef", stop="de", logprobs=0, stream=is_streamed
        )
        choices = [each.choices[0] for each in (answer if is_streamed else [answer])]
        assert "".join(choice.text for choice in choices) == "abc"
        tokens = [token for c in choices if c.logprobs for token in c.logprobs.tokens or []]
        assert tokens == ["a", "b", "c"]


def test_echo_comes_before_the_answer(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="abc", echo=True, max_tokens=2)
    assert answer.choices[0].text == "abcab"
    scored = client.completions.create(
        model=MODEL, prompt="abc", echo=True, max_tokens=0, logprobs=0
    )
    choice = scored.choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, 0.0, 0.0]
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0
    with client.completions.create(
        model=MODEL, prompt="abc", echo=True, max_tokens=2, stream=True
    ) as stream:
        assert [chunk.choices[0].text for chunk in stream] == ["abc", "a", "b", ""]


def test_cached_prompt_tokens_are_counted(client: openai.OpenAI) -> None:
    prompt = "a prompt that nobody has sent before, of many tokens"
    cached = []
    for _ in range(2):
        usage = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, len(prompt) - 1]


@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": ""}])
def test_who_names_no_model_is_answered_by_the_default(
    api: ServedApi, named: dict[str, Any]
) -> None:
    for path, prompt in (
        ("chat/completions", {"messages": HELLO}),
        ("completions", {"prompt": "a"}),
        ("responses", {"input": "a"}),
        ("messages", {"messages": HELLO, "max_tokens": 1}),
    ):
        assert api.post(f"/v1/{path}", **prompt, **named).json()["model"] == MODEL
    assert api.post("/v1/tokenize", prompt="a", **named).json()["tokens"] == [ord("a")]
    assert "has no hidden states" in api.post("/v1/embeddings", input="a", **named).text


def test_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-5", messages=HELLO)
    assert caught.value.code == "model_not_found"


def test_token_ids_beyond_the_vocabulary_are_refused(api: ServedApi) -> None:
    body = {"model": MODEL, "prompt": [1, 257]}
    response = requests.post(f"{api.url}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 400
    assert "Token id 257" in response.json()["message"]
    assert api.state()["status"] == "ready"


def test_cancelled_stream_frees_its_row(slow_api: ServedApi) -> None:
    url = f"{slow_api.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model=MODEL, prompt="x" * 900, max_tokens=900, stream=True
        )
        assert next(iter(stream)).choices[0].text == "x"
        stream.close()
        eventually(slow_api.is_idle)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=1.0).completions.create(
                model=MODEL, prompt="x" * 900, max_tokens=900
            )


def test_overload_is_the_clients_internal_server_error(narrow_api: ServedApi) -> None:
    with (
        openai.OpenAI(base_url=f"{narrow_api.url}/v1", api_key="none", max_retries=0) as client,
        narrow_api.open_stream(text="x" * 900, max_tokens=900),
    ):
        waiting = narrow_api.send_raw(post_bytes("/inference", b'{"text": "y"}'))
        eventually(lambda: narrow_api.state()["queued"] == 1)
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=MODEL, prompt="z")
        assert caught.value.status_code == 503
        assert caught.value.code == "queue_full"
        waiting.close()
