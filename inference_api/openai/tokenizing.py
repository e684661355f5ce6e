"""The bodies of vLLM's tokenizer routes."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from inference_api.bodies.fields import Unserved, fault
from inference_api.openai.messages import Messages
from inference_api.openai.requests import RequestBody, TokenId
from inference_api.openai.unserved_fields import UNSERVED, UNSERVED_OF_CHAT, UNSERVED_TOOLS


class TokenizeBody(RequestBody):
    """One of prompt and messages."""

    unserved: ClassVar[Unserved] = {**UNSERVED, **UNSERVED_OF_CHAT, **UNSERVED_TOOLS}

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise fault("prompt", "comes in place of messages; give one of the two")
        if self.messages is not None and self.add_special_tokens:
            raise fault("add_special_tokens", "is the template's matter; leave it out")
        return self


class DetokenizeBody(RequestBody):
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
