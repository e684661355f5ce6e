"""Log probabilities in the shapes of OpenAI's two routes."""

from collections.abc import Sequence
from typing import Any

from inference_api.request import ScoredToken
from inference_api.tokens import REPLACEMENT, Tokenizer

ANCHOR = "a"  # a token's text is what it adds to another's: alone it may lose its leading space

Json = dict[str, Any]


class TokenTexts:
    """The text of single tokens. Belongs to one request."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._anchor_id = tokenizer.encode(ANCHOR)[-1]
        self._anchor_text = self._decode([self._anchor_id])
        self._texts: dict[int, str] = {}

    def of(self, token_id: int) -> str:
        """Empty for a special token; a replacement character for a part of one."""
        if token_id not in self._texts:
            text = self._decode([self._anchor_id, token_id])
            self._texts[token_id] = text.removeprefix(self._anchor_text)
        return self._texts[token_id]


class Logprobs:
    """Those of one choice, as they come. Belongs to one request."""

    def __init__(self, tokenizer: Tokenizer, is_chat: bool) -> None:
        self._texts = TokenTexts(tokenizer)
        self._is_chat = is_chat
        self._offset = 0  # characters of the tokens so far

    def shape(self, tokens: Sequence[ScoredToken], end: int | None = None) -> Json:
        """Of the tokens that came next; with `end` only of those that begin before it."""
        kept: list[ScoredToken] = []
        offsets: list[int] = []
        for token in tokens:
            if end is not None and self._offset >= end:
                break
            kept.append(token)
            offsets.append(self._offset)
            self._offset += len(self._texts.of(token.token_id))
        return self._of_chat(kept) if self._is_chat else self._of_completion(kept, offsets)

    def _of_completion(self, tokens: Sequence[ScoredToken], offsets: list[int]) -> Json:
        return {
            "tokens": [self._texts.of(token.token_id) for token in tokens],
            "token_logprobs": [token.logprobs and token.logprobs.logprob for token in tokens],
            "top_logprobs": [self._likeliest(token) for token in tokens],
            "text_offset": offsets,
        }

    def _likeliest(self, token: ScoredToken) -> dict[str, float] | None:
        """The token itself is always among them, as OpenAI has it. Of several tokens with the
        same text the likeliest is shown."""
        if token.logprobs is None:
            return None
        pairs = [(token.token_id, token.logprobs.logprob), *reversed(token.logprobs.top)]
        return {self._texts.of(token_id): logprob for token_id, logprob in pairs}

    def _of_chat(self, tokens: Sequence[ScoredToken]) -> Json:
        content = []
        for token_id, logprobs in tokens:
            assert logprobs is not None, "an answer's tokens have their log probabilities"
            top = [self._entry(*each) for each in logprobs.top]
            content.append({**self._entry(token_id, logprobs.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> Json:
        text = self._texts.of(token_id)
        is_whole = REPLACEMENT not in text
        return {
            "token": text,
            "logprob": logprob,
            "bytes": list(text.encode()) if is_whole else None,
        }
