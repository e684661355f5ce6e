"""openai in Python: chat completions, streamed, and a tool by hand."""

import json
import sys
from pathlib import Path

import openai

client = openai.OpenAI()
schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
tools = [{"type": "function", "function": {"name": "read_note", "parameters": schema}}]
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    asked = {"model": "tiny", "messages": messages, "tools": tools}
    with client.chat.completions.stream(**asked) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        text = Path(json.loads(call.function.arguments)["path"]).read_text()
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
print(message.content)
