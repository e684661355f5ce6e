"""Agents: programs that bring their own prompts and tools."""

import json

from lab.clients.client import MODEL, NOTE, PROMPT, Client
from lab.clients.steering import Call

CODEX_CONFIG = """
model = "$model"
model_provider = "hearth"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.hearth]
name = "Hearth"
base_url = "$url/v1"
env_key = "HEARTH_KEY"
wire_api = "responses"
"""
CODEX = ("$bin/codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")
PATCH = f"*** Begin Patch\n*** Add File: {NOTE}.2\n+done\n*** End Patch\n"
CLAUDE = {
    "ANTHROPIC_BASE_URL": "$url",
    "ANTHROPIC_AUTH_TOKEN": "made-up",
    "ANTHROPIC_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",  # it refuses --dangerously-skip-permissions to root otherwise
}


def opencode(package: str, api: str) -> Client:
    provider = {
        "npm": package,
        "name": "Hearth",
        "options": {"baseURL": "$url/v1", "apiKey": "made-up"},
        "models": {MODEL: {"name": MODEL, "limit": {"context": 65_536, "output": 4096}}},
    }
    config = {
        "$$schema": "https://opencode.ai/config.json",
        "model": f"hearth/{MODEL}",
        "small_model": f"hearth/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"hearth": provider},
    }
    return Client(
        name=f"opencode, {package}",
        api=api,
        npm=("opencode-ai@1.18.33",),
        command=("$bin/opencode", "run", PROMPT),
        calls=(Call("read", {"filePath": f"$work/{NOTE}"}),),
        environment={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files={"$work/opencode.json": json.dumps(config)},
    )


AGENTS = (
    Client(
        name="Claude Code",
        api="/v1/messages",
        npm=("@anthropic-ai/claude-code@2.1.332",),
        command=("$bin/claude", "-p", PROMPT, "--dangerously-skip-permissions"),
        calls=(
            Call("ToolSearch", {"query": "select:WebFetch"}),  # answered by tool_reference blocks
            Call("Read", {"file_path": f"$work/{NOTE}"}),
        ),
        environment=CLAUDE,
    ),
    Client(
        name="Codex",
        api="/v1/responses",
        npm=("@openai/codex@0.171.0",),
        command=(*CODEX, PROMPT),
        calls=(
            Call("exec_command", {"cmd": f"cat {NOTE}"}),
            Call("close_agent", {"target": "nobody"}),  # of a namespace
        ),
        environment={"HEARTH_KEY": "made-up"},
        files={"$home/.codex/config.toml": CODEX_CONFIG},
    ),
    Client(
        name="Codex, `-m gpt-5.5`",
        api="/v1/responses",
        npm=("@openai/codex@0.171.0",),
        command=(*CODEX, "-m", "gpt-5.5", PROMPT),
        calls=(
            Call("exec_command", {"cmd": f"cat {NOTE}"}),
            Call("apply_patch", PATCH),
        ),
        environment={"HEARTH_KEY": "made-up"},
        files={"$home/.codex/config.toml": CODEX_CONFIG},
    ),
    opencode("@ai-sdk/openai-compatible", "/v1/chat/completions"),
    opencode("@ai-sdk/openai", "/v1/responses"),
    opencode("@ai-sdk/anthropic", "/v1/messages"),
    Client(
        name="Qwen Code",
        api="/v1/chat/completions",
        npm=("@qwen-code/qwen-code@0.24.4",),
        command=("$bin/qwen", "--yolo", "--auth-type", "openai", "-p", PROMPT),
        calls=(Call("read_file", {"file_path": f"$work/{NOTE}"}),),
        environment={
            "OPENAI_BASE_URL": "$url/v1",
            "OPENAI_API_KEY": "made-up",
            "OPENAI_MODEL": MODEL,
        },
        files={
            "$home/.qwen/settings.json": json.dumps(
                {"privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}}
            )
        },
    ),
    Client(
        name="aider",
        api="/v1/chat/completions",
        pip=("aider-chat==0.86.2",),
        command=(
            *("$bin/aider", "--model", f"openai/{MODEL}", "--edit-format", "whole", "--yes-always"),
            *("--no-auto-commits", "--no-show-model-warnings", "--no-check-update", "--analytics-disable"),
            *("--no-gitignore", "--no-detect-urls", "--map-tokens", "0", "--message"),
            *("Say that the tea is ready.", NOTE),
        ),
        end=f"{NOTE}\n```\nThe tea is ready.\n```\n",
        environment={"OPENAI_API_BASE": "$url/v1", "OPENAI_API_KEY": "made-up"},
        leaves="The tea is ready.\n",
    ),
    Client(
        name="Cline",
        api="/v1/chat/completions",
        npm=("cline@3.0.65",),
        before=(
            (
                *("$bin/cline", "auth", "--provider", "openai", "--apikey", "made-up"),
                *("--baseurl", "$url/v1", "--modelid", MODEL),
            ),
        ),
        command=("$bin/cline", PROMPT),
        calls=(Call("read_files", {"files": [{"path": f"$work/{NOTE}"}]}),),
    ),
    Client(
        name="Continue",
        api="/v1/chat/completions",
        npm=("@continuedev/cli@1.5.47",),
        command=("$bin/cn", "--config", "$home/config.yaml", "--auto", "-p", PROMPT),
        calls=(Call("Read", {"filepath": f"$work/{NOTE}"}),),
        environment={"CONTINUE_TELEMETRY_ENABLED": "0"},
        files={
            "$home/config.yaml": json.dumps(
                {
                    "name": "hearth",
                    "version": "1.0.0",
                    "schema": "v1",
                    "models": [
                        {
                            "name": MODEL,
                            "provider": "openai",
                            "model": MODEL,
                            "apiBase": "$url/v1",
                            "apiKey": "made-up",
                            "roles": ["chat"],
                            "capabilities": ["tool_use"],
                        }
                    ],
                }
            )
        },
    ),
)
