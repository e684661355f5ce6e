"""From a chat that any API's body asks for to the response, in the form of that API."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from flask import Response, jsonify

from inference_api.apis.chat import Chat, ChatAnswer, answer_reader, chat_params
from inference_api.apis.choosing import Chosen, ModelChoice
from inference_api.apis.events import EVENT_STREAM, STREAM_HEADERS, switch_headers
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.generations import Generations
from inference_api.core.served_model import ServedModel
from inference_api.errors import ContextTooLong, InvalidRequest
from inference_api.web.caller import caller_of_request, leave_aside


class Writer(Protocol):
    """An API's form of answers; all but one of the APIs ask for one. Both raise HearthError,
    `stream` after its event of it, so that the connection breaks instead of ending well."""

    def whole(self, answers: Sequence[ChatAnswer]) -> Mapping[str, Any]: ...

    def stream(self, answers: Sequence[ChatAnswer]) -> Iterator[bytes]: ...


class Chats:
    """Immutable; any request thread."""

    def __init__(
        self, generations: Generations, backend: DecodeBackend, choice: ModelChoice
    ) -> None:
        self._generations = generations
        self._backend = backend
        self._choice = choice

    def respond(
        self, chat: Chat, writer_of: Callable[[Chosen, ServedModel], Writer], streams: bool
    ) -> Response:
        """Returns the answer; `writer_of` is called with the model that gives it."""
        chosen, model = self.model_of(chat)
        leave_aside(chat.unread_by(model.tokenizer.dialect))
        with ExitStack() as stack:
            with (
                self._generations.admitted(model.name, caller_of_request()) as admitted,
                prompt_is_called(chat.prompt_field),
            ):
                prompt = model.prompt_encoder.encode_chat(chat.turns, chat.extras)
                each = [chat_params(params, chat.use, model.tokenizer) for params in chat.params]
                requests = [(prompt, params) for params in each]
                generations = self._generations.begin_all(admitted, requests)
            for generation in generations:
                stack.callback(generation.close)
            answers = [
                ChatAnswer(generation, answer_reader(model.tokenizer, chat.use, prompt))
                for generation in generations
            ]
            writer = writer_of(chosen, model)
            return responded(stack, writer, answers, len(prompt), chosen.headers, streams)

    def model_of(self, chat: Chat) -> tuple[Chosen, ServedModel]:
        """Raises UnknownModel, NotReady, Draining and BackendFailed."""
        chosen = self._choice.of(chat.model, chat.user_texts)
        self._backend.check_admission()
        return chosen, self._backend.served[chosen.name]


def responded(
    stack: ExitStack,
    writer: Writer,
    answers: Sequence[ChatAnswer],
    prompt_tokens: int,
    headers: Mapping[str, str],
    streams: bool,
) -> Response:
    """Returns the answers as a response. `stack` closes their generations: at its own end or, if
    they are streamed, when the stream ends, in whatever way."""
    generations = [answer.generation for answer in answers]
    told = {**headers, **switch_headers(generations)}
    if not streams:
        response = jsonify(writer.whole(answers))
        response.headers.update(told)
        return response
    response = Response(writer.stream(answers), content_type=EVENT_STREAM)
    response.headers.update({**STREAM_HEADERS, **told})
    response.headers["X-Session-Id"] = generations[0].session_id
    response.headers["X-Prompt-Tokens"] = str(prompt_tokens)
    response.call_on_close(stack.pop_all().close)
    return response


@contextmanager
def prompt_is_called(field: str) -> Iterator[None]:
    """Makes refusals of a prompt's length name `field`, as the route calls it."""
    try:
        yield
    except ContextTooLong as error:
        error.param = field
        raise


def encoded(prompt: str | list[int], model: ServedModel, field: str) -> list[int]:
    """Returns the token ids of a prompt, which is the body's `field`. Raises InvalidRequest."""
    if isinstance(prompt, str):
        return model.prompt_encoder.encode(prompt)
    return known_ids(prompt, model.vocab_size, field)


def known_ids(token_ids: list[int], vocab_size: int, field: str) -> list[int]:
    """Returns the token ids. Raises InvalidRequest for one that the model does not have."""
    if max(token_ids, default=0) >= vocab_size:
        raise InvalidRequest(
            f"{field}: Token id {max(token_ids)} is not in this model's vocabulary, 0 to "
            f"{vocab_size - 1}; give ids of this model's tokenizer.",
            field,
        )
    return token_ids
