"""Encodes prompts to token ids, with bounds that are checked before work is spent."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Condition, Lock

from inference_api.errors import PromptTooLong, QueueFull
from inference_api.text.chat_prompts import NO_EXTRAS, Extras, texts_in
from inference_api.text.tokens import Tokenizer
from inference_api.tools.history import Message

# A tokenizer needs about 300 bytes of memory for each byte of text, and occupies a core.
MAX_BYTES_AT_ONCE = 128 * 1024
WAIT_S = 10.0
RETRY_AFTER_S = 1


class PromptEncoder:
    """Encodes texts that may fit the context, a bounded number of bytes at once. Any thread."""

    def __init__(
        self, tokenizer: Tokenizer, max_seq_len: int, budget: "ByteBudget | None" = None
    ) -> None:
        """`budget` may be shared by several encoders; None: this one has its own."""
        self._tokenizer = tokenizer
        self._max_seq_len = max_seq_len
        self._max_bytes = max_seq_len * tokenizer.bytes_per_token
        self._budget = budget or ByteBudget()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids. Raises PromptTooLong for a text with more bytes than the context
        can hold, and QueueFull if other texts occupy the budget for too long."""
        with self._room_for([text]):
            return self._tokenizer.encode(text, add_special_tokens)

    def encode_chat(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        """Returns the prompt of a conversation.

        Bounded by the bytes of messages and tools, even if the template leaves some out, and by
        their number, because each takes at least one token; then by the bytes that the template has
        made of them. Raises what `encode` raises, and InvalidRequest if the template refuses the
        messages.
        """
        if len(messages) > self._max_seq_len:
            raise PromptTooLong(len(messages), "messages", self._max_seq_len, self._max_seq_len)
        fields = [{key: each[key] for key in each if key != "role"} for each in messages]
        values = [*(value for each in fields for value in each.values()), *extras.tools]
        with ExitStack() as room:
            room.enter_context(self._room_for(list(texts_in([*values, extras.options]))))

            def exchange_room(prompt: str) -> None:
                room.close()
                room.enter_context(self._room_for([prompt]))

            extras = replace(extras, on_rendered=exchange_room)
            return self._tokenizer.encode_chat(messages, extras)

    @contextmanager
    def _room_for(self, texts: Sequence[str]) -> Iterator[None]:
        num_bytes = sum(len(text.encode()) for text in texts)
        if num_bytes > self._max_bytes:
            raise PromptTooLong(num_bytes, "bytes", self._max_bytes, self._max_seq_len)
        with self._budget.share(num_bytes):
            yield


class ByteBudget:
    """A number of bytes that may be encoded at once, granted in order of arrival. Any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES_AT_ONCE, wait_s: float = WAIT_S) -> None:
        self._max_bytes = max_bytes
        self._free_bytes = max_bytes
        self._wait_s = wait_s
        self._first = Lock()  # held by the next in line, so that large shares are not overtaken
        self._changed = Condition()

    @contextmanager
    def share(self, num_bytes: int) -> Iterator[None]:
        """Wait for a share. A share above the whole budget gets all of it. Raises QueueFull."""
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
