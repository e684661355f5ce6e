"""Clients that call tools, unchanged, on a model of random weights: LangChain, Pydantic AI and
Vercel's AI SDK; and what Instructor sends, which wants an older openai than the tests do."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from lab.kit.servers import ROOT, ServedApi
from tests.e2e.test_tools import MODEL, TOOLS

NODE = Path(sys.executable).with_name("node")
CLIENT_S = 120  # a bound that tells a client at work from one that hangs


@pytest.fixture(scope="module")
def api(tools_api: ServedApi) -> ServedApi:
    return tools_api


class Person(BaseModel):
    """Someone."""

    name: str = Field(max_length=8)
    size: Literal["small", "large"]


def chat(api: ServedApi, **options: Any) -> Any:
    from langchain_openai import ChatOpenAI  # seconds, of each worker's

    settings: dict[str, Any] = {"model": MODEL, "api_key": "none", "max_retries": 0, "seed": 3}
    return ChatOpenAI(base_url=f"{api.url}/v1", **settings | options)


def test_langchain_binds_tools_and_streams_them(api: ServedApi) -> None:
    bound = chat(api).bind_tools(TOOLS, tool_choice="required")
    answer = bound.invoke("hi")
    streamed: Any = None
    for piece in bound.stream("hi"):
        streamed = piece if streamed is None else streamed + piece
    calls = [(call["name"], call["args"]) for call in answer.tool_calls]
    assert calls
    assert [(call["name"], call["args"]) for call in streamed.tool_calls] == calls
    results = [
        {"role": "tool", "content": "12", "tool_call_id": call["id"]} for call in answer.tool_calls
    ]
    assert chat(api, max_tokens=2).invoke([("human", "hi"), answer, *results]).content


def test_langchains_structured_output_by_function_calling(api: ServedApi) -> None:
    asker = chat(api).with_structured_output(Person, method="function_calling")
    assert isinstance(asker.invoke("Who?"), Person)


def test_pydantic_ai_answers_by_its_output_tool_whole_and_streamed(api: ServedApi) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run() -> tuple[object, object]:
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, output_type=Person, model_settings={"seed": 1})
            whole = (await agent.run("Who?")).output
            async with agent.run_stream("Who?") as stream:
                return whole, await stream.get_output()

    whole, streamed = asyncio.run(run())
    assert isinstance(whole, Person)
    assert streamed == whole


def test_vercels_sdk_calls_tools_whole_streamed_and_in_steps(api: ServedApi) -> None:
    script = ROOT / "tests" / "e2e" / "clients" / "vercel_ai.mjs"
    command = [str(NODE), str(script), api.url, MODEL]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["whole"]
    assert said["whole"] == said["streamed"] == said["steps"][0]
    assert said["reason"] == "tool-calls"
    assert {"tool-input-start", "tool-input-delta", "tool-call", "tool-result"} <= {*said["kinds"]}
    assert len(said["steps"]) == 2
    assert said["steps"][1]  # required again, with results before it
