"""Writes log probabilities in the formats of OpenAI's routes.

`bytes` are the token's own, so that the bytes of all tokens joined are the text's. A token that is
part of a character has some of the character's bytes; a special token, which adds no text, has
none.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

from inference_api.apis.openai import wire
from inference_api.request import ScoredToken
from inference_api.text.tokens import TextStream, Tokenizer

LogprobsAnswer = wire.CompletionLogprobs | wire.ChatLogprobs


def text_and_bytes(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    """Returns a token's text and bytes. The text of a special token is its name, and the text of an
    incomplete character is the replacement character."""
    token_bytes, name = tokenizer.token_bytes(token_id), tokenizer.special_token(token_id)
    return token_bytes.decode(errors="replace") if name is None else name, token_bytes


def first_of(tokens: Sequence[ScoredToken], num_top: int) -> list[ScoredToken]:
    """Returns the tokens with at most `num_top` of the likeliest tokens each."""
    return [
        ScoredToken(id_, found and replace(found, top=found.top[:num_top])) for id_, found in tokens
    ]


def prompt_logprobs(tokens: Sequence[ScoredToken], tokenizer: Tokenizer) -> wire.PromptLogprobs:
    """Returns the log probabilities of a prompt and the likeliest tokens in vLLM's format."""
    text_and_bytes_of = cache(partial(text_and_bytes, tokenizer))
    shown: wire.PromptLogprobs = []
    for token_id, found in tokens:
        if found is None:
            shown.append(None)
            continue
        scored = (found.rank, token_id, found.logprob)
        best = [(rank, id_, logprob) for rank, (id_, logprob) in enumerate(found.top, 1)]
        shown.append(
            {
                str(id_): wire.PromptLogprob(
                    logprob=logprob, rank=rank, decoded_token=text_and_bytes_of(id_)[0]
                )
                for rank, id_, logprob in [scored, *(each for each in best if each[1] != token_id)]
            }
        )
    return shown


class TextOffsets:
    """Offsets of tokens in the text they make, in characters. Belongs to one request."""

    def __init__(self, tokenizer: Tokenizer, kept: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._kept = kept
        self._text = TextStream(tokenizer, kept)
        self._num_chars = 0  # characters that later tokens cannot change
        self._held = b""  # bytes of later tokens: the beginning of a character

    def push(self, token_id: int, token_bytes: bytes) -> int:
        """Returns the next token's offset. Inside a character it is that character's offset."""
        # The last character of this text contains the token's first byte.
        begun = (self._held + token_bytes[:1]).decode(errors="replace")
        offset = self._num_chars + max(0, len(begun) - 1)
        piece = self._text.push([token_id])
        self._num_chars += len(piece)
        self._held = b"" if piece else self._held + token_bytes
        return offset

    def begin_answer(self) -> None:
        """Decode the tokens from here on separately from those before."""
        self._num_chars += len(self._text.finish())
        self._text, self._held = TextStream(self._tokenizer, self._kept), b""


class Logprobs:
    """The log probabilities of one choice, as they come. Belongs to one request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        is_chat: bool,
        num_prompt_tokens: int = 0,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        """`num_prompt_tokens` are scored before the answer's; `kept` are special tokens whose names
        are text."""
        self._text_and_bytes = cache(partial(text_and_bytes, tokenizer))
        self._offsets = TextOffsets(tokenizer, kept)
        self._is_chat = is_chat
        self._prompt_tokens_left = num_prompt_tokens
        self._ahead = b""  # bytes that `of_text` has found in no text so far
        self._begins: list[tuple[int, ScoredToken]] = []  # their tokens, by places in `_ahead`

    def shape(self, tokens: Sequence[ScoredToken], end: int | None = None) -> LogprobsAnswer:
        """Returns the log probabilities of the next tokens; with `end`, only of tokens that begin
        before that offset."""
        kept: list[ScoredToken] = []
        offsets: list[int] = []
        for token in tokens:
            if self._prompt_tokens_left == 0:
                self._offsets.begin_answer()
            self._prompt_tokens_left -= 1
            offset = self._offsets.push(token.token_id, self._text_and_bytes(token.token_id)[1])
            if end is not None and offset >= end:
                break
            kept.append(token)
            offsets.append(offset)
        return self._of_chat(kept) if self._is_chat else self._of_completion(kept, offsets)

    def of_text(self, tokens: Sequence[ScoredToken], text: str) -> list[wire.ChatLogprob]:
        """Returns the log probabilities of the next text, in the format of `/v1/responses`.
        `tokens` came since the text before. Those of no text, such as marks, are left out."""
        for token in tokens:
            name, token_bytes = self._text_and_bytes(token.token_id)
            self._begins.append((len(self._ahead), token))
            self._ahead += token_bytes or name.encode()  # a mark's name may stand in a text
        begin = self._ahead.find(text.encode())
        # It is not found if the model wrote it in another form, or bytes that are no character.
        end = len(self._ahead) if begin < 0 else begin + len(text.encode())
        places = pairwise([*self._begins, (len(self._ahead), None)])
        taken = [token for (at, token), (stop, _) in places if token and at < end and begin < stop]
        self._begins = [(at - end, token) for at, token in self._begins if at >= end]
        self._ahead = self._ahead[end:]
        content = self._of_chat(taken)["content"]
        for scored in [*content, *(top for each in content for top in each["top_logprobs"])]:
            scored["bytes"] = scored["bytes"] or []  # no null in this format
        return content

    def _of_completion(
        self, tokens: Sequence[ScoredToken], offsets: list[int]
    ) -> wire.CompletionLogprobs:
        return wire.CompletionLogprobs(
            tokens=[self._text_and_bytes(token.token_id)[0] for token in tokens],
            token_logprobs=[token.logprobs.logprob if token.logprobs else None for token in tokens],
            top_logprobs=[self._likeliest(token) for token in tokens],
            text_offset=offsets,
        )

    def _likeliest(self, token: ScoredToken) -> dict[str, float] | None:
        """Returns the likeliest tokens and the token itself, by text, as OpenAI does. Of tokens
        with the same text only the likeliest counts."""
        if token.logprobs is None:
            return None
        pairs = [(token.token_id, token.logprobs.logprob), *reversed(token.logprobs.top)]
        return {self._text_and_bytes(token_id)[0]: logprob for token_id, logprob in pairs}

    def _of_chat(self, tokens: Sequence[ScoredToken]) -> wire.ChatLogprobs:
        content: list[wire.ChatLogprob] = []
        for token_id, logprobs in tokens:
            assert logprobs is not None, "an answer's tokens have their log probabilities"
            top = [self._entry(*each) for each in logprobs.top]
            content.append({**self._entry(token_id, logprobs.logprob), "top_logprobs": top})
        return wire.ChatLogprobs(content=content, refusal=None)

    def _entry(self, token_id: int, logprob: float) -> wire.ScoredText:
        text, token_bytes = self._text_and_bytes(token_id)
        return wire.ScoredText(token=text, logprob=logprob, bytes=list(token_bytes) or None)
