"""Keeps special tokens in a prompt apart from text that reads like them."""

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

Span = tuple[int, int]  # part of a text: its start, and its end (exclusive)

PRIVATE_USE = range(0xE000, 0xF900)  # characters without meaning, which no normaliser changes
PRIVATE_PLANE = 0xF0000  # 65,534 more of them
SECRET_CHARS = 8


def encoded(backend: "Backend", text: str, add_special_tokens: bool) -> list[int]:
    # A batch of one, because the library releases the interpreter lock only for batches.
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoding.ids)


class SpecialTokens:
    """Keeps a template's special tokens apart from texts of messages. Immutable; any thread.

    Before rendering, `hide` replaces every look-alike in a message by a placeholder, so that any
    special token in the rendered text was written by the template. `encode` then replaces each of
    these by an alias, and each placeholder by its text, and encodes the result with a second
    tokenizer. That one has the aliases in place of the special tokens and is otherwise the same, so
    spaces and neighbours affect an alias like its token. Placeholders and aliases begin with a
    secret, so that no text contains them.
    """

    def __init__(self, backend: "Backend", add_special_tokens: bool) -> None:
        added = backend.get_added_tokens_decoder()
        self._ids = {token.content: id_ for id_, token in added.items() if token.special}
        self._placeholders = _stand_ins(self._ids, secret := private_text())
        self._hidden = {placeholder: token for token, placeholder in self._placeholders.items()}
        self._placeholder = re.compile(secret + ".")
        self._aliases = _stand_ins(self._ids, private_text())
        self._finder = _finder(self._ids)
        self._aliased, self._original_ids = _aliased(backend, added, self._aliases)
        self._adds_special_tokens = add_special_tokens
        # Tokens that the tokenizer itself adds around a prompt, or for unknown text.
        self._around = Counter(encoded(backend, "", add_special_tokens))
        self._unknown_id = self._ids.get(getattr(backend.model, "unk_token", None) or "")

    def find(self, text: str) -> list[Span]:
        """Returns the spans of special tokens' texts, from left to right, the longest first."""
        (found,) = self._finder.encode_batch([text])
        return list(found.offsets)

    def hide(self, text: str) -> str:
        """Returns the text with look-alikes of special tokens replaced by placeholders."""
        return _replaced(text, self.find(text), self._placeholders)

    def encode(self, prompt: str, written: Sequence[Span]) -> list[int]:
        """Returns the ids of a prompt. `written` are the spans of the template's special tokens."""
        text = _replaced(prompt, written, self._aliases)
        text = self._placeholder.sub(lambda found: self._hidden.get(found[0], ""), text)
        ids = encoded(self._aliased, text, self._adds_special_tokens)
        return [self._original_ids.get(id_, id_) for id_ in ids]

    def are_written(self, ids: Sequence[int], prompt: str, written: Sequence[Span]) -> bool:
        """Returns whether the ids have no more special tokens than the template wrote. A normaliser
        may produce one from other text, for example."""
        wanted = Counter(self._ids[prompt[start:end]] for start, end in written) + self._around
        special_ids = {*self._ids.values()} - {self._unknown_id}
        return Counter(id_ for id_ in ids if id_ in special_ids) <= wanted


def private_text() -> str:
    """Returns a text that no other text contains, by chance or on purpose."""
    return "".join(chr(secrets.choice(PRIVATE_USE)) for _ in range(SECRET_CHARS))


def _stand_ins(tokens: Iterable[str], secret: str) -> dict[str, str]:
    return {token: secret + chr(PRIVATE_PLANE + number) for number, token in enumerate(tokens)}


def _finder(tokens: Iterable[str]) -> "Backend":
    """Returns a tokenizer that finds only these tokens in a text."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    finder = Backend(BPE())
    finder.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    return finder


def _aliased(
    backend: "Backend", added: Mapping[int, "AddedToken"], aliases: Mapping[str, str]
) -> tuple["Backend", dict[int, int]]:
    """Returns the tokenizer with aliases for its special tokens, and the original ids of all added
    tokens. It shares the model, which takes most of the memory."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

    twin = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        if (value := getattr(backend, part)) is not None:
            setattr(twin, part, value)
    names = {
        id_: aliases[token.content] if token.special else token.content
        for id_, token in added.items()
    }
    twin.add_tokens(
        [
            AddedToken(
                names[id_],
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
            )
            for id_, token in added.items()
        ]
    )
    ids = twin.get_vocab()
    return twin, {ids[name]: id_ for id_, name in names.items()}


def _replaced(text: str, spans: Sequence[Span], by: Mapping[str, str]) -> str:
    pieces, at = [], 0
    for start, end in spans:
        pieces += [text[at:start], by[text[start:end]]]
        at = end
    return "".join([*pieces, text[at:]])
