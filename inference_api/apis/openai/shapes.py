"""The shapes of choices on OpenAI's two generation routes, whole or in chunks."""

from dataclasses import dataclass
from typing import Any

from inference_api.apis.openai.wire import AssistantMessage
from inference_api.tools.events import (
    ArgumentsDelta,
    CallStart,
    Event,
    TextDelta,
    ThoughtDelta,
    WholeAnswer,
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The format of one route's answers."""

    id_prefix: str
    object: str
    chunk_object: str
    is_chat: bool

    def content(self, answer: WholeAnswer) -> Json:
        if self.is_chat:
            return {"message": _message(answer)}
        return {"text": answer.text}

    def delta(self, event: Event | None, is_first: bool) -> Json:
        """Returns the part of the answer that a chunk brings; None if it brings something else."""
        if not self.is_chat:
            return {"text": event.text if isinstance(event, TextDelta) else ""}
        role = {"role": "assistant"} if is_first else {}
        return {"delta": role | _delta(event)}


COMPLETION = AnswerForm("cmpl-", "text_completion", "text_completion", is_chat=False)
CHAT = AnswerForm("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)


def _message(answer: WholeAnswer) -> AssistantMessage:
    message: AssistantMessage = {"role": "assistant", "content": answer.text}
    if answer.thoughts:
        message["reasoning_content"] = answer.thoughts
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


def _delta(event: Event | None) -> Json:
    """Returns an event's delta. Clients concatenate all its texts except `type`, so role, id and
    name are sent once."""
    match event:
        case TextDelta(text):
            return {"content": text}
        case ThoughtDelta(text):
            return {"reasoning_content": text}
        case CallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return {}
