"""vLLM's tokenizer routes, for clients without a tokenizer of their own (lm-eval, say)."""

from typing import Annotated, ClassVar

from flask import Blueprint, Response, jsonify
from pydantic import Field

from common.errors import Error
from common.operations import operation
from inference_api.apis.answering import known_ids, naming_prompt_field
from inference_api.apis.choosing import ModelChoice
from inference_api.apis.openai.bodies import RequestBody, TokenId
from inference_api.apis.openai.field_kinds import UNSERVED, UNSERVED_OF_CHAT, UNSERVED_TOOLS
from inference_api.apis.openai.messages import Messages
from inference_api.apis.openai.tools import ConversationFields, check_open
from inference_api.apis.openai.wire import Detokenized, TokenizerInfo, Tokens
from inference_api.core.served_model import ServedModel
from inference_api.text.chat_prompts import Extras
from inference_api.web.caller import read
from inference_api.web.errors import REFUSALS
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


def create_blueprint(choice: ModelChoice) -> Blueprint:
    blueprint = Blueprint("tokenize", __name__)

    @blueprint.post("/tokenize")
    @blueprint.post("/v1/tokenize")
    @operation(
        "The token ids of a text or a conversation.", {200: Tokens, **REFUSALS}, TokenizeBody
    )
    def tokenize() -> Response:
        body = read(TokenizeBody)
        return jsonify(_tokens(body, choice.served(body.model, [])[1]))

    @blueprint.post("/detokenize")
    @blueprint.post("/v1/detokenize")
    @operation(
        "The text of token ids, special tokens among it.",
        {200: Detokenized, **REFUSALS},
        DetokenizeBody,
    )
    def detokenize() -> Response:
        body = read(DetokenizeBody)
        _, model = choice.served(body.model, [])
        token_ids = known_ids(body.tokens, model.vocab_size, "tokens")
        text = model.tokenizer.decode(token_ids, skip_special_tokens=False)
        return jsonify(Detokenized(prompt=text))

    @blueprint.get("/tokenizer_info")
    @operation(
        "The tokenizer's special tokens and chat template, as in tokenizer_config.json.",
        {200: TokenizerInfo, 503: Error},
    )
    def tokenizer_info() -> Response:
        _, model = choice.served(None, [])
        return jsonify({**model.tokenizer.info(), "model_max_length": model.max_seq_len})

    return blueprint


def _tokens(body: TokenizeBody, model: ServedModel) -> Tokens:
    encoder, turns = model.prompt_encoder, [each.as_turn() for each in body.messages or ()]
    with naming_prompt_field("messages" if turns else "prompt"):
        if turns:
            token_ids = encoder.encode_chat(turns, body.extras())
        else:
            token_ids = encoder.encode(body.prompt or "", body.add_special_tokens is not False)
    return Tokens(
        count=len(token_ids),
        max_model_len=model.max_seq_len,
        tokens=token_ids,
        token_strs=model.tokenizer.token_strings(token_ids) if body.return_token_strs else None,
    )
