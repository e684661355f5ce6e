"""vLLM's tokenizer routes, for clients without a tokenizer of their own (lm-eval, say)."""

from flask import Blueprint, Response, jsonify

from common.errors import Error
from common.operations import operation
from inference_api.apis.answering import known_ids, prompt_is_called
from inference_api.apis.openai.messages import turns_of
from inference_api.apis.openai.wire import Detokenized, TokenizerInfo, Tokens
from inference_api.apis.tokenize.body import DetokenizeBody, TokenizeBody
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.served_model import ServedModel
from inference_api.settings import Settings
from inference_api.web.caller import read
from inference_api.web.errors import REFUSALS


def create_blueprint(backend: DecodeBackend, settings: Settings) -> Blueprint:
    blueprint = Blueprint("tokenize", __name__)

    @blueprint.post("/tokenize")
    @blueprint.post("/v1/tokenize")
    @operation(
        "The token ids of a text or a conversation.", {200: Tokens, **REFUSALS}, TokenizeBody
    )
    def tokenize() -> Response:
        body = read(TokenizeBody)
        return jsonify(_tokens(body, served(body.model)))

    @blueprint.post("/detokenize")
    @blueprint.post("/v1/detokenize")
    @operation(
        "The text of token ids, special tokens among it.",
        {200: Detokenized, **REFUSALS},
        DetokenizeBody,
    )
    def detokenize() -> Response:
        body = read(DetokenizeBody)
        model = served(body.model)
        token_ids = known_ids(body.tokens, model.vocab_size, "tokens")
        text = model.tokenizer.decode(token_ids, skip_special_tokens=False)
        return jsonify(Detokenized(prompt=text))

    @blueprint.get("/tokenizer_info")
    @operation(
        "The tokenizer's special tokens and chat template, as in tokenizer_config.json.",
        {200: TokenizerInfo, 503: Error},
    )
    def tokenizer_info() -> Response:
        model = served(None)
        return jsonify({**model.tokenizer.info(), "model_max_length": model.max_seq_len})

    def served(model: str | None) -> ServedModel:
        name = settings.default_model.name if model is None else settings.name_of(model)
        backend.check_admission()
        return backend.served[name]

    return blueprint


def _tokens(body: TokenizeBody, model: ServedModel) -> Tokens:
    prompts = model.prompt_encoder
    if body.messages is not None:
        with prompt_is_called("messages"):
            token_ids = prompts.encode_chat(turns_of(body.messages), body.extras())
    else:
        add_special_tokens = body.add_special_tokens is not False
        with prompt_is_called("prompt"):
            token_ids = prompts.encode(body.prompt or "", add_special_tokens)
    return Tokens(
        count=len(token_ids),
        max_model_len=model.max_seq_len,
        tokens=token_ids,
        token_strs=model.tokenizer.token_strings(token_ids) if body.return_token_strs else None,
    )
