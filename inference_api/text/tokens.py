"""Converts between text and token ids: encoding, single tokens, streams of text.

A `Tokenizer` is immutable once loaded and may be shared by any threads. `TextStream` and
`StopMatcher` belong to one request each. Importing this module loads no torch.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from inference_api.errors import StartupError
from inference_api.text.chat_prompts import NO_EXTRAS, ChatPrompts, Extras
from inference_api.text.chat_template import read_chat_template
from inference_api.text.prompt_bounds import bytes_per_token, is_byte_level
from inference_api.text.special_tokens import encoded
from inference_api.text.token_bytes import BYTE_TOKENS, byte_level_bytes
from inference_api.text.tokenizer_config import DEFAULT, TokenizerConfig, read_tokenizer
from inference_api.tools.dialects import Dialect
from inference_api.tools.history import Message
from inference_api.tools.reader import overlap

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

REPLACEMENT = "\ufffd"  # an incomplete UTF-8 sequence decodes to this
THOUGHT_TOKENS = 16  # last tokens of a prompt in which the tag of a thought is looked for
ANCHOR = "a"  # tokens are decoded after this, because alone they may lose a leading space
MAX_AROUND_TOKENS = 64  # tokens that a tokenizer adds around a prompt; language models' add two
MAX_LETTER_TOKENS = 8  # tokens of one letter, and of what a normaliser puts before it


class Tokenizer(Protocol):
    """A model's tokenizer, as request threads use it."""

    stop_token_ids: frozenset[int]
    bytes_per_token: int
    """Most bytes of text, in UTF-8, that one token stands for. See `prompt_bounds`."""
    dialect: Dialect
    """How the model writes calls and thoughts."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of a text, with or without the special tokens around a prompt. Text that
        reads like a special token becomes one."""

    def encode_chat(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        """Returns the prompt of a conversation, by the model's chat template. In messages, text
        that reads like a special token stays text. Raises InvalidRequest if the template refuses
        it, for the order of roles, for example."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of the ids, with or without special tokens."""

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Returns the tokens as in the vocabulary; an empty text for an unknown id."""

    def info(self) -> dict[str, str | None]:
        """Returns class, special tokens and chat template, named as in `tokenizer_config.json`."""

    def special_token(self, token_id: int) -> str | None:
        """Returns the name of a special token; None for any other."""

    def special_ids(self, names: Iterable[str]) -> frozenset[int]:
        """Returns the ids of the special tokens among the names."""

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes a token adds to a text: characters, parts of one, none if special."""

    def as_json(self) -> str | None:
        """Returns the content of its `tokenizer.json`; None if it has none."""


class HuggingFaceTokenizer:
    """A `tokenizer.json` with its chat template. Immutable; any thread."""

    def __init__(
        self, backend: "Backend", config: TokenizerConfig, stop_token_ids: frozenset[int]
    ) -> None:
        """Raises StartupError if its chat template is unusable."""
        self.stop_token_ids = stop_token_ids
        self._config = config
        self._tokenizer = backend
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._check_growth()
        description = json.loads(self._tokenizer.to_str())
        self.bytes_per_token = bytes_per_token(description)
        self._is_byte_level = is_byte_level(description)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id_: token.content for id_, token in added.items() if token.special}
        self._special_ids = {name: id_ for id_, name in self._special.items()}
        self._chat = ChatPrompts(self._tokenizer, read_chat_template(config))
        self.dialect = self._chat.dialect
        self._anchor_id = self.encode(ANCHOR)[-1]

    def _check_growth(self) -> None:
        """Raises ValueError if a letter becomes many tokens: a post-processor may repeat a text,
        for example."""
        num_around = len(self.encode(""))
        num_letter = len(self.encode(ANCHOR)) - num_around
        if num_around > MAX_AROUND_TOKENS or num_letter > MAX_LETTER_TOKENS:
            most = MAX_AROUND_TOKENS + MAX_LETTER_TOKENS
            raise ValueError(f"it makes {num_around + num_letter} tokens of a letter, above {most}")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return encoded(self._tokenizer, text, add_special_tokens)

    def encode_chat(self, messages: Sequence[Message], extras: Extras = NO_EXTRAS) -> list[int]:
        return self._chat.encode(messages, extras)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def info(self) -> dict[str, str | None]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return {
            "tokenizer_class": self._config.tokenizer_class,
            **{name: self._config.special_tokens.get(name) for name in names},
            "chat_template": self._config.templates.get(DEFAULT),
        }

    def special_token(self, token_id: int) -> str | None:
        return self._special.get(token_id)

    def special_ids(self, names: Iterable[str]) -> frozenset[int]:
        return frozenset(self._special_ids[name] for name in names if name in self._special_ids)

    def token_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        if self._is_byte_level:
            return byte_level_bytes(token)
        if token in BYTE_TOKENS:
            return bytes([BYTE_TOKENS[token]])
        anchored = self.decode([self._anchor_id, token_id])
        return anchored.removeprefix(self.decode([self._anchor_id])).encode()

    def as_json(self) -> str | None:
        return str(self._tokenizer.to_str())


def load_tokenizer(model_dir: Path, stop_token_ids: frozenset[int]) -> HuggingFaceTokenizer:
    """Read the tokenizer of a model folder or GGUF file. Takes seconds: not for request threads.

    Raises StartupError if the folder has no `tokenizer.json` and none can be made of its files, its
    files are faulty, or its chat template is unusable.
    """
    try:
        return HuggingFaceTokenizer(*read_tokenizer(model_dir), stop_token_ids)
    except (StartupError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the library's panics, too, which are no Exceptions
        raise StartupError(
            f"{model_dir}: the tokenizer cannot be loaded ({error}); get its files again."
        ) from error


class TextStream:
    """Converts token ids, as they come, to pieces of text that never split a character.

    The joined pieces equal `decode` of all ids at once. Only the ids since the last complete
    character are decoded again, with the piece before them as context for leading spaces.
    """

    def __init__(self, tokenizer: Tokenizer, kept: frozenset[int] = frozenset()) -> None:
        """`kept` are special tokens whose names are kept in the text."""
        self._tokenizer = tokenizer
        self.kept = kept
        self._token_ids: list[int] = []
        self._context_from = 0  # first id that is decoded as context
        self._fresh_from = 0  # first id whose text has not been returned

    def push(self, token_ids: Sequence[int]) -> str:
        """Returns the text completed by these ids; empty while a character is incomplete."""
        if self.kept:
            special = self._tokenizer.special_token
            token_ids = [id_ for id_ in token_ids if id_ in self.kept or special(id_) is None]
        self._token_ids.extend(token_ids)
        text = self._fresh_text()
        if text.endswith(REPLACEMENT):
            return ""
        self._context_from, self._fresh_from = self._fresh_from, len(self._token_ids)
        return text

    def finish(self) -> str:
        """Returns the rest that was held back, incomplete as it is."""
        text = self._fresh_text()
        self._fresh_from = len(self._token_ids)
        return text

    def _fresh_text(self) -> str:
        context = self._decode(self._token_ids[self._context_from : self._fresh_from])
        return self._decode(self._token_ids[self._context_from :])[len(context) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=not self.kept)


def is_thinking(tokenizer: Tokenizer, prompt_tokens: Sequence[int]) -> bool:
    """Returns whether the prompt ends within a thought, which the answer then continues."""
    thought = tokenizer.dialect.thought
    if thought is None:
        return False
    end = tokenizer.decode(prompt_tokens[-THOUGHT_TOKENS:], skip_special_tokens=False)
    return end.rstrip().endswith((thought.begin, thought.begin + thought.label))


class StopMatcher:
    """Cuts a text stream at the first stop string, and holds back text that may become one."""

    def __init__(
        self, stop_strings: Sequence[str], min_tokens: int = 0, includes_stop: bool = False
    ) -> None:
        """Text of the first `min_tokens` tokens is never cut. With `includes_stop` the text is cut
        after the stop string instead of before."""
        self._stop_strings = tuple(stop_strings)
        self._tokens_left = min_tokens
        self._includes_stop = includes_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str, num_tokens: int = 0) -> str:
        """Returns the text that is safe to send, after `num_tokens` more tokens. On a match this is
        the text up to it; later, nothing."""
        self._tokens_left -= num_tokens
        is_too_early = num_tokens > 0 and self._tokens_left >= 0
        if self.matched is not None:
            return ""
        if not self._stop_strings or is_too_early:
            return piece
        text = self._held + piece
        found = [(at, stop) for stop in self._stop_strings if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            self.matched, self._held = stop, ""
            return text[: at + len(stop) if self._includes_stop else at]
        held = max(overlap(text, stop) for stop in self._stop_strings)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Returns the text that was held back, and became no stop string."""
        held, self._held = self._held, ""
        return held
