"""Servers to measure: OpenAI-compatible ones, or Hearth by its own routes.

Requests are built completely in advance, so that the load process only has to send them.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import SecretStr

from benchmarking.load.answers import ChatStream, StreamReader, TextAnswer
from benchmarking.load.client import Address

CHAT_PATH = "/chat/completions"
MIN_SECRET_CHARS = 6  # shorter values are not masked, as any message may have them by chance

Kind = Literal["openai", "hearth"]
Body = dict[str, Any]
Headers = tuple[tuple[str, SecretStr], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one request. `image_url` is a data URL, for models that take images."""

    name: str
    text: str
    num_tokens: int  # counted by the model's tokenizer, with special tokens
    image_url: str | None = None


def _chat_body(model: str, prompt: Prompt, max_tokens: int) -> Body:
    """Returns a body of a chat. Servers that know `ignore_eos` answer with exactly `max_tokens`."""
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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: its kind and the URL at which its routes begin. Immutable.

    `base` may end in /chat/completions, or be only the address; it has no credentials. Its query,
    such as Azure's api-version, is added to every route. The values of `user_headers` are secrets.
    `left_out` and `renamed` are fields of a body that the server refuses, or names differently.
    """

    kind: Kind
    base: str
    key: SecretStr | None = None
    sampling_params: Body = field(default_factory=dict)
    user_headers: Headers = ()
    left_out: frozenset[str] = frozenset()
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> Address:
        parts = urlsplit(self.base)
        is_tls = parts.scheme == "https"
        return Address(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)

    @property
    def answer(self) -> type[StreamReader]:
        return TextAnswer if self.kind == "hearth" else ChatStream

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request. The user's own ones take precedence over that of the key."""
        user_headers = {name.title(): value.get_secret_value() for name, value in self.user_headers}
        key = {} if self.key is None else {"Authorization": f"Bearer {self.key.get_secret_value()}"}
        return key | user_headers

    def without_secrets(self, message: str) -> str:
        """Returns a server's message without the request's secrets, even if it cuts one off."""
        secrets = [value for _, value in self.user_headers] + ([self.key] if self.key else [])
        for value in (secret.get_secret_value() for secret in secrets):
            for length in range(len(value), MIN_SECRET_CHARS - 1, -1):
                if length == len(value) or message.endswith(value[:length]):
                    message = message.replace(value[:length], "***")
        return message

    def body(self, model: str, prompt: Prompt, max_tokens: int) -> Body:
        body: Body = {"text": prompt.text, "max_tokens": max_tokens}
        if self.kind == "openai":
            body = _chat_body(model, prompt, max_tokens)
        body |= self.sampling_params
        names = dict(self.renamed)
        return {names.get(k, k): value for k, value in body.items() if k not in self.left_out}

    def request(self, model: str, prompt: Prompt, max_tokens: int) -> bytes:
        """Returns the head and body of one POST, after which the connection closes."""
        url = urlsplit(self.completions(model))
        body = json.dumps(self.body(model, prompt, max_tokens)).encode()
        headers = {
            "Host": url.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Accept-Encoding": "identity",
            **self.headers,
        }
        path = url._replace(scheme="", netloc="").geturl()
        lines = [f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def completions(self, model: str) -> str:
        """Returns the URL to which requests for a model are sent."""
        if self.kind == "hearth":
            return self.beside(f"/predictions/{quote(model)}")
        return self.route(CHAT_PATH)

    def route(self, path: str) -> str:
        """Returns the URL of one of OpenAI's routes, such as /models."""
        if self.kind == "hearth":
            return self.beside(f"/v1{path}")
        return self._at(self._routes_path + path)

    def beside(self, path: str) -> str:
        """Returns the URL of a route that is not OpenAI's, without the /v1 of theirs."""
        return self._at(self._routes_path.removesuffix("/v1") + path)

    @property
    def _routes_path(self) -> str:
        return urlsplit(self.base).path.rstrip("/").removesuffix(CHAT_PATH)

    def _at(self, path: str) -> str:
        return urlunsplit(urlsplit(self.base)._replace(path=path))

    @property
    def agreement(self) -> str:
        """How bodies differ from the usual ones; empty if they do not."""
        differences = [f"without {name}" for name in sorted(self.left_out)]
        return ", ".join(differences + [f"with {new} for {old}" for old, new in self.renamed])

    def __str__(self) -> str:
        return f"{self.kind} {self.base}" + (self.agreement and f", {self.agreement}")
