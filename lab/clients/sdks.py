"""Libraries, each called by a script of its own in scripts/."""

from lab.clients.client import MODEL, NOTE, PROMPT, Client
from lab.clients.steering import END, Call

READ = (Call("read_note", {"path": NOTE}),)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
KEYS = {
    "OPENAI_BASE_URL": "$url/v1",
    "OPENAI_API_KEY": "made-up",
    "ANTHROPIC_BASE_URL": "$url",
    "ANTHROPIC_API_KEY": "made-up",
}
LLM_MODELS = f"""
- model_id: hearth
  model_name: {MODEL}
  api_base: $url/v1
  api_key_name: hearth
  supports_tools: true
"""
LLM_TOOL = """
def read_note(path: str) -> str:
    "Read a note."
    return open(path).read()
"""


def python(
    name: str,
    api: str,
    script: str,
    *arguments: str,
    pip: tuple[str, ...],
    calls: tuple[Call, ...] = READ,
    is_ended_by_call: bool = False,
) -> Client:
    return Client(
        name=name,
        api=api,
        pip=pip,
        command=("$bin/python", f"$scripts/{script}", PROMPT, *arguments),
        calls=calls,
        is_ended_by_call=is_ended_by_call,
        environment=KEYS,
    )


def javascript(name: str, api: str, script: str, package: str) -> Client:
    return Client(
        name=name,
        api=api,
        npm=(package,),
        # Node looks for packages beside a script.
        before=(("cp", f"$scripts/{script}", "$bin/.."),),
        command=("node", f"$bin/../{script}", PROMPT),
        calls=READ,
        environment=KEYS,
    )


OPENAI, ANTHROPIC = ("openai==3.57.0",), ("anthropic==2.14.0",)
AGENTS = ("openai-agents==0.24.0",)
PYDANTIC_AI = ("pydantic-ai-slim[openai,anthropic]==2.68.0",)
LANGCHAIN = ("langchain-openai==1.7.4", "langgraph==1.2.24")
LITELLM = ("litellm==1.110.2",)

SDKS = (
    python("openai, Python", CHAT, "openai_chat.py", pip=OPENAI),
    python("openai, Python", RESPONSES, "openai_responses.py", pip=OPENAI),
    python("anthropic, Python", MESSAGES, "anthropic_runner.py", pip=ANTHROPIC),
    javascript("openai, JavaScript", CHAT, "openai_runner.mjs", "openai@7.59.0"),
    javascript("anthropic, JavaScript", MESSAGES, "anthropic_runner.mjs", "@anthropic-ai/sdk@1.14.0"),
    python(
        "smolagents",
        CHAT,
        "smolagents_agent.py",
        pip=("smolagents[openai]==1.26.0",),
        calls=(*READ, Call("final_answer", {"answer": END})),
        is_ended_by_call=True,
    ),
    python("openai-agents", RESPONSES, "openai_agents.py", "responses", pip=AGENTS),
    python("openai-agents", CHAT, "openai_agents.py", "chat_completions", pip=AGENTS),
    Client(
        name="llm",
        api=CHAT,
        pip=("llm==0.36",),
        command=("$bin/llm", "-m", "hearth", "--functions", LLM_TOOL, PROMPT),
        calls=READ,
        environment={"LLM_USER_PATH": "$home"},
        files={"$home/extra-openai-models.yaml": LLM_MODELS, "$home/keys.json": '{"hearth": "x"}'},
    ),
    python("Pydantic AI", CHAT, "pydantic_ai_agent.py", f"openai-chat:{MODEL}", pip=PYDANTIC_AI),
    python("Pydantic AI", RESPONSES, "pydantic_ai_agent.py", f"openai-responses:{MODEL}", pip=PYDANTIC_AI),
    python("Pydantic AI", MESSAGES, "pydantic_ai_agent.py", f"anthropic:{MODEL}", pip=PYDANTIC_AI),
    python("LangChain, LangGraph", CHAT, "langgraph_agent.py", "chat", pip=LANGCHAIN),
    python("LangChain, LangGraph", RESPONSES, "langgraph_agent.py", "responses", pip=LANGCHAIN),
    python("litellm", CHAT, "litellm_loop.py", f"openai/{MODEL}", pip=LITELLM),
    python("litellm", MESSAGES, "litellm_loop.py", f"anthropic/{MODEL}", pip=LITELLM),
    python(
        "Instructor",
        CHAT,
        "instructor_model.py",
        pip=("instructor==1.17.0",),
        calls=(Call("Note", {"text": END}),),
        is_ended_by_call=True,
    ),
    python("CrewAI", CHAT, "crewai_crew.py", pip=("crewai==1.15.30",)),
)
