"""The whole application without a model or torch: a patched DecodeBackend echoes every prompt.

For developing the proxy, clients and load tools. Start it with `make mock`, with MOCK_MODEL=1, or
`gunicorn --config gunicorn.conf.py 'inference_api._mock_inference_api_server:create_test_server()'`
"""

import time
from collections.abc import Callable, Iterable, Sequence
from unittest.mock import patch

from flask import Flask

from inference_api.core.decode_backend import DecodeBackend
from inference_api.inference_api_server import create_server, server_of
from inference_api.loading.config import PAGE_TOKENS, num_pages
from inference_api.model_loading import loaded_alone
from inference_api.request import TokenLogprobs
from inference_api.runner import Draw, Drawn, ModelRunner, PageLayout, RowResult, RowStep
from inference_api.settings import Settings
from inference_api.text.chat_prompts import NO_EXTRAS, Extras, plain_chat_prompt
from inference_api.tools.dialects import GENERIC
from inference_api.tools.history import Manners, Message, prepared

END_TOKEN = 256  # lower ids are bytes
DEFAULT_SEQ_LEN = 2048


class ByteTokenizer:
    """A tokenizer with one token for each byte of UTF-8."""

    stop_token_ids = frozenset({END_TOKEN})
    bytes_per_token = 1
    dialect = GENERIC

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        return self.encode(plain_chat_prompt(prepared(messages, extras.tools, Manners())))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(id_ for id_ in token_ids if id_ < END_TOKEN).decode(errors="replace")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [self.decode([token_id]) for token_id in token_ids]

    def info(self) -> dict[str, str | None]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        return {"tokenizer_class": "ByteTokenizer", **dict.fromkeys(names)}

    def special_token(self, token_id: int) -> str | None:
        return None if token_id < END_TOKEN else "</s>"

    def special_ids(self, names: Iterable[str]) -> frozenset[int]:
        return frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < END_TOKEN else b""

    def as_json(self) -> None:
        return None


class EchoRunner(ModelRunner):
    """A runner that answers with the prompt, then the end token. It loads and keeps nothing."""

    is_batch_invariant = True
    chunk_tokens = 256
    hidden_size = 0
    has_medusa_heads = has_mtp = False
    eos_token_ids = frozenset({END_TOKEN})
    medusa = mtp = None
    facts = None

    def __init__(self, max_rows: int, max_seq_len: int) -> None:
        self.max_rows = max_rows
        self.max_seq_len = max_seq_len
        self.vocab_size = END_TOKEN + 1

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        """Returns the prompts' next tokens. Draws carry the prompts, so no cache is needed."""
        return [
            RowResult([Drawn(token := _echo(draw), _certain(token, draw)) for draw in each.draws])
            for each in rows
        ]

    @property
    def layout(self) -> PageLayout:
        return PageLayout(self.max_rows * num_pages(self.max_seq_len), PAGE_TOKENS, 0)

    def idle(self) -> bool:
        return False

    def load(self) -> None: ...
    def warm_up(self) -> None: ...
    def keep(self, row: RowStep, accepted: Sequence[int]) -> None: ...
    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None: ...
    def copy_page(self, source: int, target: int) -> None: ...
    def give_back(self, pages: Sequence[int]) -> None: ...
    def close(self) -> None: ...


def _echo(draw: Draw) -> int:
    if draw.known_id is not None:
        return draw.known_id
    at = len(draw.generated) + len(draw.branch)
    return draw.prompt_tokens[at] if at < len(draw.prompt_tokens) else END_TOKEN


def _certain(token_id: int, draw: Draw) -> TokenLogprobs | None:
    if draw.sampling.num_logprobs is None:
        return None
    return TokenLogprobs(0.0, 1, ((token_id, 0.0),)[: draw.sampling.num_logprobs])


def create_test_server(settings: Settings | None = None) -> Flask:
    """Returns the application of `create_server`, with three methods of its backend patched."""
    app = create_server(settings)
    _patch(server_of(app).backend)
    return app


def _patch(backend: DecodeBackend) -> None:
    settings = backend.settings
    decode: Callable[[], None] = backend.decode
    due_s = 0.0

    def load_model_and_tokenizer() -> None:
        backend.take(
            loaded_alone(
                model.name,
                EchoRunner(model.user_rows, model.max_seq_len or DEFAULT_SEQ_LEN),
                ByteTokenizer(),
                settings,
            )
            for model in settings.served_models
        )

    def decode_at_the_set_pace() -> None:
        nonlocal due_s
        if any(row is not None for row in backend.users):
            now_s = time.monotonic()
            due_s = max(due_s + 1.0 / settings.mock_tokens_per_second, now_s)
            time.sleep(due_s - now_s)
        decode()

    patch.object(backend, "load_model_and_tokenizer", load_model_and_tokenizer).start()
    patch.object(backend, "_post_init_compile", lambda: None).start()
    patch.object(backend, "decode", decode_at_the_set_pace).start()
