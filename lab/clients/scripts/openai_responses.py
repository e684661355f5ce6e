"""openai in Python: responses, streamed, and a tool by hand."""

import json
import sys
from pathlib import Path

import openai

client = openai.OpenAI()
schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
tools = [{"type": "function", "name": "read_note", "parameters": schema}]
items = [{"role": "user", "content": sys.argv[1]}]
while True:
    with client.responses.stream(model="tiny", input=items, tools=tools, store=False) as stream:
        response = stream.get_final_response()
    items += response.output
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        break
    for call in calls:
        text = Path(json.loads(call.arguments)["path"]).read_text()
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": text})
print(response.output_text)
