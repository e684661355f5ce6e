"""The one way from prompts to token ids, bounded before work is spent on them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock

from inference_api.errors import PromptTooLong, QueueFull
from inference_api.text.chat_prompts import NO_EXTRAS, Extras, texts_in
from inference_api.text.tokens import Tokenizer
from inference_api.tools.history import Message

# A tokenizer needs some 300 bytes of memory for a byte of text, and a core meanwhile.
MAX_BYTES_AT_ONCE = 128 * 1024
WAIT_S = 10.0
RETRY_AFTER_S = 1


class PromptEncoder:
    """Encodes what may fit the context, a bounded number of bytes at once. Any thread."""

    def __init__(
        self, tokenizer: Tokenizer, max_seq_len: int, budget: "ByteBudget | None" = None
    ) -> None:
        """`budget` is what encoders share; None: this one has its own."""
        self._tokenizer = tokenizer
        self._max_seq_len = max_seq_len
        self._max_bytes = max_seq_len * tokenizer.bytes_per_token
        self._budget = budget or ByteBudget(MAX_BYTES_AT_ONCE, WAIT_S)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Raises PromptTooLong for a text of more bytes than the context can hold, QueueFull when
        others are encoded all the while."""
        with self._room_for([text]):
            return self._tokenizer.encode(text, add_special_tokens)

    def encode_chat(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        """Bounded by what messages and tools say, even if the template should leave some of it out,
        and by their number, as each takes a token at least. Raises what `encode` does, and
        InvalidRequest when the template refuses them."""
        if len(messages) > self._max_seq_len:
            raise PromptTooLong(len(messages), "messages", self._max_seq_len, self._max_seq_len)
        said = [{key: each[key] for key in each if key != "role"} for each in messages]
        given = [*(value for each in said for value in each.values()), *extras.tools]
        with self._room_for(list(texts_in([*given, extras.options]))):
            return self._tokenizer.encode_chat(messages, extras)

    @contextmanager
    def _room_for(self, texts: Sequence[str]) -> Iterator[None]:
        num_bytes = sum(len(text.encode()) for text in texts)
        if num_bytes > self._max_bytes:
            raise PromptTooLong(num_bytes, "bytes", self._max_bytes, self._max_seq_len)
        with self._budget.share(num_bytes):
            yield


class ByteBudget:
    """So many bytes at once, for those who come first. Any thread."""

    def __init__(self, max_bytes: int, wait_s: float) -> None:
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes
        self._wait_s = wait_s
        self._first = Lock()  # held by who is next, so that a large share is not passed by for ever
        self._changed = Condition()

    @contextmanager
    def share(self, num_bytes: int) -> Iterator[None]:
        """Wait for a share; what exceeds the whole budget gets all of it. Raises QueueFull."""
        num_bytes = min(num_bytes, self._max_bytes)
        self._take(num_bytes)
        try:
            yield
        finally:
            with self._changed:
                self._free_bytes += num_bytes
                self._changed.notify()

    def _take(self, num_bytes: int) -> None:
        if not self._first.acquire(timeout=self._wait_s):
            raise QueueFull(RETRY_AFTER_S)
        try:
            with self._changed:
                has_room = self._changed.wait_for(
                    lambda: self._free_bytes >= num_bytes, self._wait_s
                )
                if not has_room:
                    raise QueueFull(RETRY_AFTER_S)
                self._free_bytes -= num_bytes
        finally:
            self._first.release()
