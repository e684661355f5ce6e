"""The bodies of vLLM's tokenizer routes."""

from typing import Annotated, ClassVar

from pydantic import Field

from inference_api.apis.openai.bodies import RequestBody, TokenId
from inference_api.apis.openai.field_kinds import UNSERVED, UNSERVED_OF_CHAT, UNSERVED_TOOLS
from inference_api.apis.openai.messages import Messages
from inference_api.apis.openai.tools import ConversationFields, check_open
from inference_api.text.chat_prompts import Extras
from inference_api.web.fields import Unserved, fault


class TokenizeBody(ConversationFields, RequestBody):
    """Has either `prompt` or `messages`."""

    unserved: ClassVar[Unserved] = {
        **UNSERVED,
        **UNSERVED_OF_CHAT,
        "reasoning_effort": UNSERVED_TOOLS["reasoning_effort"],
    }

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        super().check()
        if (self.prompt is None) == (self.messages is None):
            raise fault("prompt", "comes in place of messages; give one of the two")
        if self.messages is not None and self.add_special_tokens:
            raise fault("add_special_tokens", "is the template's matter; leave it out")
        if self.messages is not None:
            if self.continue_final_message:
                check_open(self.messages[-1])
            return
        for field in ("tools", "chat_template_kwargs", "continue_final_message"):
            if getattr(self, field):
                raise fault(field, "comes with messages; leave it out or give them")

    def extras(self) -> Extras:
        tools = [tool.as_json() for tool in self.tool_use().tools]
        return Extras(tools, dict(self.chat_template_kwargs or {}), self.ending)


class DetokenizeBody(RequestBody):
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
