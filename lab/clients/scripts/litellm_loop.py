"""litellm, on either API, and a tool by hand."""

import json
import sys
from pathlib import Path

import litellm

prompt, model = sys.argv[1:]
schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
tools = [{"type": "function", "function": {"name": "read_note", "parameters": schema}}]
messages = [{"role": "user", "content": prompt}]
while True:
    pieces = litellm.completion(model=model, messages=messages, tools=tools, stream=True)
    message = litellm.stream_chunk_builder([*pieces], messages=messages).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        text = Path(json.loads(call.function.arguments)["path"]).read_text()
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
print(message.content)
