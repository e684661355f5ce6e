"""Counts the tokens of texts, by asking the server or with a tokenizer from a file."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import requests
import tokenizers

from benchmarking.errors import InvalidConfig, TargetUnusable
from benchmarking.load.targets import Endpoint
from common.paths import expanded

SERVER = "server"
TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 64 * 2**20  # vLLM's answer also lists all token ids
REMEMBERED_TEXTS = 100_000
NO_COUNT = (
    requests.RequestException, ValueError, KeyError, TypeError, OverflowError, RecursionError,
)  # fmt: skip


class Tokenizer(Protocol):
    """Counts tokens for one model. For one thread."""

    def count(self, text: str) -> int:
        """Returns the number of tokens of a prompt, with the special tokens that models expect."""

    def count_plain(self, text: str) -> int:
        """Returns the number of tokens of a piece of an answer, without special tokens."""

    def context_left(self, text: str) -> int | None:
        """Returns the most tokens that an answer to this text may have; None if unknown."""


def tokenizer_for(source: str, target: Endpoint, model: str) -> Tokenizer:
    """Returns a tokenizer. `source` is "server", or the path of a tokenizer.json or its folder.
    Raises TargetUnusable and InvalidConfig."""
    return ServerTokenizer(target, model) if source == SERVER else FileTokenizer(source)


class FileTokenizer:
    """A tokenizer from a `tokenizer.json`, which does not know the context length."""

    def __init__(self, path: str | Path) -> None:
        try:
            path = expanded(path)
            path = path / "tokenizer.json" if path.is_dir() else path
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # errors of the Rust library have no type of their own
            remedy = f"name a folder with tokenizer.json, or {SERVER!r} to have the server count"
            raise InvalidConfig("tokenizer", [f"{path}: {error}; {remedy}"]) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)

    def count_plain(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def context_left(self, text: str) -> int | None:
        return None


class ServerTokenizer:
    """A tokenizer that asks the server's `/v1/tokenize`, or vLLM's `/tokenize`."""

    def __init__(self, target: Endpoint, model: str) -> None:
        self._model = model
        self._session = requests.Session()
        self._session.trust_env = False  # lest a .netrc replace the key, or a proxy the server
        self._session.headers.update(target.headers)
        self._urls = [target.route("/tokenize"), target.beside("/tokenize")]
        specials = self.count("")
        self.count_plain = lru_cache(REMEMBERED_TEXTS)(lambda text: self.count(text) - specials)

    def count(self, text: str) -> int:
        return int(self._ask(prompt=text)["count"])

    def context_left(self, text: str) -> int | None:
        answer = self._ask(messages=[{"role": "user", "content": text}])
        context = answer.get("max_model_len")
        return context - int(answer["count"]) if isinstance(context, int) else None

    def _ask(self, **text: Any) -> dict[str, Any]:
        url = self._urls[0]
        try:
            answer = self._session.post(
                url,
                json={"model": self._model, **text},
                timeout=TIMEOUT_S,
                allow_redirects=False,  # lest the user's key go to another server
                stream=True,
            )
            content = _body_of(answer)
            if answer.status_code == 404 and len(self._urls) > 1:
                del self._urls[0]
                return self._ask(**text)
            answer.raise_for_status()
            counted: dict[str, Any] = json.loads(content)
            int(counted["count"])
        except NO_COUNT as error:
            raise TargetUnusable(
                f"{url} does not count tokens ({error}); start the server, or set tokenizer to "
                "the folder of the model's tokenizer.json"
            ) from error
        return counted


def _body_of(answer: requests.Response) -> bytes:
    """Returns the body of an answer. Raises ValueError, and reads no further, if it is too long."""
    body = bytearray()
    with answer:
        for piece in answer.iter_content(2**16):
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)
