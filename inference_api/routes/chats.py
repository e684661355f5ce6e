"""From a chat that any API's body asks for to the response, in the form of that API."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from flask import Response, jsonify

from inference_api.generation.chat import (
    ChatAnswer,
    ChatRequest,
    answer_reader,
    chat_params,
    check_effort,
)
from inference_api.generation.streaming import Generations, TextGeneration
from inference_api.routes.caller import caller_of_request
from inference_api.routes.chosen_model import Chosen, ModelChoice
from inference_api.routes.generate import EVENT_STREAM, STREAM_HEADERS, switch_headers
from inference_api.routes.tokenize import prompt_is_called
from inference_api.scheduling.decode_backend import DecodeBackend
from inference_api.scheduling.served_model import ServedModel
from inference_api.text.prompt_encoder import PromptEncoder


class Form(Protocol):
    """An API's form of one answer. Both raise HearthError, `stream` after its event of it."""

    def whole(self, answer: ChatAnswer) -> Mapping[str, Any]: ...

    def stream(self, answer: ChatAnswer) -> Iterator[bytes]: ...


class Chats:
    """Immutable; any request thread."""

    def __init__(
        self, generations: Generations, backend: DecodeBackend, choice: ModelChoice
    ) -> None:
        self._generations = generations
        self._backend = backend
        self._choice = choice

    def respond(self, chat: ChatRequest, form_of: Callable[[str], Form], streams: bool) -> Response:
        """Returns the answer; `form_of` is called with the name of the model that gives it."""
        chosen, model = self.model_of(chat)
        if chat.effort_field is not None:
            check_effort(model.tokenizer, chat.effort_field)
        params = chat_params(chat.params, chat.use, model.tokenizer)

        def encode(prompts: PromptEncoder) -> list[int]:
            token_ids = prompts.encode_chat(*chat.conversation)
            chat.check_room(len(token_ids), model.max_seq_len)
            return token_ids

        with ExitStack() as stack:
            with prompt_is_called(chat.prompt_field):
                caller = caller_of_request()
                generation = self._generations.begin(model.name, encode, params, caller)
            stack.callback(generation.close)
            reader = answer_reader(model.tokenizer, chat.use, generation.prompt_tokens)
            answer, form = ChatAnswer(generation, reader), form_of(chosen.shown)
            told = chosen.headers | switch_headers([generation])
            if not streams:
                response = jsonify(form.whole(answer))
                response.headers.update(told)
                return response
            response = Response(form.stream(answer), content_type=EVENT_STREAM)
            response.headers.update(told | _stream_headers(generation))
            response.call_on_close(stack.pop_all().close)
            return response

    def model_of(self, chat: ChatRequest) -> tuple[Chosen, ServedModel]:
        """Raises UnknownModel, NotReady, Draining and BackendFailed."""
        chosen = self._choice.of(chat.model, chat.user_texts)
        self._backend.check_admission()
        return chosen, self._backend.served[chosen.name]


def _stream_headers(generation: TextGeneration) -> dict[str, str]:
    told = {
        "X-Session-Id": generation.session_id,
        "X-Prompt-Tokens": str(len(generation.prompt_tokens)),
    }
    return STREAM_HEADERS | told
