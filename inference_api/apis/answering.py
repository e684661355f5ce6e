"""Answers a `Chat` from any API: chooses the model, generates, and responds in the API's format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from flask import Response, jsonify

from inference_api.apis.chat import Chat, ChatAnswer, answer_reader, chat_params
from inference_api.apis.choosing import Chosen, ModelChoice
from inference_api.apis.events import EVENT_STREAM, STREAM_HEADERS, switch_headers
from inference_api.core.generations import Generations
from inference_api.core.served_model import ServedModel
from inference_api.errors import ContextTooLong, InvalidRequest
from inference_api.web.caller import caller_of_request, leave_aside


class Writer(Protocol):
    """Writes answers in the format of one API. Most APIs ask for a single answer.

    Both methods raise HearthError. `stream` first yields an event about the error; raising it then
    breaks the connection, so that no client takes the answer for complete.
    """

    def whole(self, answers: Sequence[ChatAnswer]) -> Mapping[str, Any]: ...

    def stream(self, answers: Sequence[ChatAnswer]) -> Iterator[bytes]: ...


class Chats:
    """Immutable; any request thread."""

    def __init__(self, generations: Generations, choice: ModelChoice) -> None:
        self._generations = generations
        self._choice = choice

    def respond(
        self, chat: Chat, writer_of: Callable[[Chosen, ServedModel], Writer], streams: bool
    ) -> Response:
        """Returns the response. `writer_of` makes the writer, once the model is chosen."""
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
                ChatAnswer(generation, answer_reader(model.tokenizer, chat.use, prompt, chat.turns))
                for generation in generations
            ]
            writer = writer_of(chosen, model)
            return responded(stack, writer, answers, len(prompt), chosen.headers, streams)

    def model_of(self, chat: Chat) -> tuple[Chosen, ServedModel]:
        """Raises UnknownModel, NotReady, Draining and BackendFailed."""
        return self._choice.served(chat.model, chat.user_texts)


def responded(
    stack: ExitStack,
    writer: Writer,
    answers: Sequence[ChatAnswer],
    prompt_tokens: int,
    headers: Mapping[str, str],
    streams: bool,
) -> Response:
    """Returns the answers as a response. `stack` closes the generations: when it exits, or, if the
    answers are streamed, when the stream ends for any reason."""
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
    """Sets the parameter that a refusal for the prompt's length names: the route's `field`."""
    try:
        yield
    except ContextTooLong as error:
        error.param = field
        raise


def encoded(prompt: str | list[int], model: ServedModel, field: str) -> list[int]:
    """Returns the token ids of the prompt in the body's `field`. Raises InvalidRequest."""
    if isinstance(prompt, str):
        return model.prompt_encoder.encode(prompt)
    return known_ids(prompt, model.vocab_size, field)


def known_ids(token_ids: list[int], vocab_size: int, field: str) -> list[int]:
    """Returns the given token ids. Raises InvalidRequest if the model lacks one of them."""
    if max(token_ids, default=0) >= vocab_size:
        raise InvalidRequest(
            f"{field}: Token id {max(token_ids)} is not in this model's vocabulary, 0 to "
            f"{vocab_size - 1}; give ids of this model's tokenizer.",
            field,
        )
    return token_ids
