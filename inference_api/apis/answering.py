"""Answers a `Chat` from any API: chooses the model, generates, and responds in the API's format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from flask import Response, jsonify

from inference_api.apis.chat import Chat, ChatAnswer, answer_reader, chat_params
from inference_api.apis.choosing import ChosenModel, ModelChoice
from inference_api.apis.events import EVENT_STREAM, STREAM_HEADERS, breaking_off, switch_headers
from inference_api.core.generations import Generations, Requests, TextGeneration
from inference_api.core.served_model import ServedModel
from inference_api.errors import ContextTooLong, InvalidRequest
from inference_api.text.tokens import Tokenizer
from inference_api.web.caller import caller_of_request, leave_aside


class Writer(Protocol):
    """Writes answers in the format of one API. Most APIs ask for a single answer.

    Both methods raise HearthError. `stream` first yields an event about the error; raising it then
    breaks the connection, so that no client takes the answer for complete.
    """

    def complete(self, answers: Sequence[ChatAnswer]) -> Mapping[str, Any]: ...

    def stream(self, answers: Sequence[ChatAnswer]) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class RunningReply:
    """The generations of one response, which have begun, and its headers."""

    generations: Sequence[TextGeneration]
    headers: Mapping[str, str]
    closing: ExitStack  # closes the generations

    def respond(
        self, writer: Writer, answers: Sequence[ChatAnswer], prompt_tokens: int, streams: bool
    ) -> Response:
        if streams:
            return self.streamed(writer.stream(answers), EVENT_STREAM, prompt_tokens)
        return self.complete(writer.complete(answers))

    def complete(self, answer: Mapping[str, Any]) -> Response:
        response = jsonify(answer)
        response.headers.update({**self.headers, **switch_headers(self.generations)})
        return response

    def streamed(self, chunks: Iterator[bytes], content_type: str, prompt_tokens: int) -> Response:
        """Returns a response that closes the generations when the stream ends for any reason."""
        response = Response(breaking_off(chunks), content_type=content_type)
        response.headers.update(
            {**STREAM_HEADERS, **self.headers, **switch_headers(self.generations)}
        )
        response.headers["X-Session-Id"] = self.generations[0].session_id
        # Raw text has no place for usage, which the proxy's token limits need.
        response.headers["X-Prompt-Tokens"] = str(prompt_tokens)
        response.call_on_close(self.closing.pop_all().close)
        return response


@dataclass(frozen=True, slots=True)
class Answering:
    """Answers requests with generations of the chosen model. Immutable; any request thread."""

    generations: Generations
    choice: ModelChoice

    def respond(
        self, chat: Chat, writer_of: Callable[[ChosenModel, Tokenizer], Writer], streams: bool
    ) -> Response:
        """Returns the answers to a chat. `writer_of` makes the writer, once the model is chosen."""
        chosen, model = self.choice.served(chat.model, chat.user_texts)
        leave_aside(chat.unread_by(model.tokenizer.dialect))

        def requests(model: ServedModel) -> Requests:
            prompt = model.prompt_encoder.encode_chat(chat.turns, chat.extras)
            each = [chat_params(params, chat.use, model.tokenizer) for params in chat.params]
            return [(prompt, params) for params in each]

        with self.reply(chosen, requests, chat.prompt_field) as reply:
            prompt = reply.generations[0].prompt_tokens
            answers = [
                ChatAnswer(each, answer_reader(model.tokenizer, chat.use, prompt, chat.turns))
                for each in reply.generations
            ]
            return reply.respond(writer_of(chosen, model.tokenizer), answers, len(prompt), streams)

    def count(self, chat: Chat) -> int:
        """Returns the number of tokens of a chat's prompt. Raises HearthError."""
        _, model = self.choice.served(chat.model, chat.user_texts)
        with naming_prompt_field(chat.prompt_field):
            return len(model.prompt_encoder.encode_chat(chat.turns, chat.extras))

    @contextmanager
    def reply(
        self, chosen: ChosenModel, requests: Callable[[ServedModel], Requests], field: str
    ) -> Iterator[RunningReply]:
        """Begins generations, and closes them unless a streamed response does. `requests` encodes
        the prompts, once the call is admitted. A refusal for their length names `field`. Raises
        HearthError."""
        admission = self.generations.admitted(chosen.name, caller_of_request())
        with ExitStack() as closing:
            with admission as admitted, naming_prompt_field(field):
                running = self.generations.begin(admitted, requests(admitted.model))
            for each in running:
                closing.callback(each.close)
            yield RunningReply(running, chosen.headers, closing)


@contextmanager
def naming_prompt_field(field: str) -> Iterator[None]:
    """Makes a refusal for the prompt's length name the route's `field`."""
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
