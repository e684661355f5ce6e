"""Servers to measure: OpenAI-compatible ones, or Hearth by its own routes.

Requests are made whole in advance, so that the load process has only to send them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from benchmarking.load.answers import Answer, ChatAnswer, TextAnswer
from benchmarking.load.client import Address

CHAT_PATH = "/chat/completions"

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one request. `image_url`: a data URL, for models that take images."""

    name: str
    text: str
    num_tokens: int  # as the model's tokenizer counts, with special tokens
    image_url: str | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """The wire format of one kind of server: its requests and its answers."""

    answer: type[Answer]
    path: Callable[[str], str]  # of a model
    body: Callable[[str, Prompt, int], Body]  # of model, prompt and max_tokens


def _chat_body(model: str, prompt: Prompt, max_tokens: int) -> Body:
    """`ignore_eos`: servers that know it answer with exactly `max_tokens`."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": _content(prompt)}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _content(prompt: Prompt) -> str | list[Body]:
    if prompt.image_url is None:
        return prompt.text
    image = {"type": "image_url", "image_url": {"url": prompt.image_url}}
    return [{"type": "text", "text": prompt.text}, image]


def _text_body(model: str, prompt: Prompt, max_tokens: int) -> Body:
    return {"text": prompt.text, "max_tokens": max_tokens}


FORMS = {
    "openai": Form(ChatAnswer, lambda model: CHAT_PATH, _chat_body),
    "hearth": Form(TextAnswer, lambda model: f"/predictions/{quote(model)}", _text_body),
}


@dataclass(frozen=True, slots=True)
class Target:
    """A server: what kind it is and where its routes begin. Immutable.

    `base` may end in /chat/completions, or be the address alone; it holds no credentials.
    """

    kind: str  # of FORMS
    base: str
    key: SecretStr | None = None
    sampling_params: Body = field(default_factory=dict)

    @property
    def address(self) -> Address:
        parts = urlsplit(self.base)
        is_tls = parts.scheme == "https"
        return Address(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)

    @property
    def answer(self) -> type[Answer]:
        return FORMS[self.kind].answer

    @property
    def root(self) -> str:
        """Returns the server's base URL, without the version of OpenAI's routes."""
        return self.base.rstrip("/").removesuffix(CHAT_PATH).removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        if self.key is None:
            return {}
        return {"Authorization": f"Bearer {self.key.get_secret_value()}"}

    def request(self, model: str, prompt: Prompt, max_tokens: int) -> bytes:
        """Head and body of one POST on a connection of its own."""
        form = FORMS[self.kind]
        path = form.path(model)
        url = urlsplit(self.root + path if self.kind == "hearth" else self.route(path))
        body = json.dumps(form.body(model, prompt, max_tokens) | self.sampling_params).encode()
        headers = {
            "Host": url.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **self.headers,
        }
        lines = [f"POST {url.path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def route(self, path: str) -> str:
        """The address of one of OpenAI's routes, such as /models."""
        routes = self.base.rstrip("/").removesuffix(CHAT_PATH)
        return (f"{self.root}/v1" if self.kind == "hearth" else routes) + path

    def __str__(self) -> str:
        return f"{self.kind} {self.base}"
