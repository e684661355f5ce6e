"""Answers that keep to a JSON schema, a regular expression or a choice, by llguidance.

An extra (`requirements-constraints.txt`). A grammar is compiled on the request's thread; the decode
thread follows it token by token, and the sampler draws only from what may come next.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from inference_api.errors import ConstraintFailed, InvalidRequest
from inference_api.request import ConstraintSpec
from inference_api.text.tokens import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_COMPILED = 256  # grammars kept for the next request that brings the same
# Without this a small model may answer with nothing but white space until its tokens are used up.
JSON_FORM: "JsonCompileOptions" = {"whitespace_flexible": False}
EXTRA = (
    "llguidance, which is not installed here: pip install -r requirements-constraints.txt, "
    "or Hearth with its extra 'constraints'"
)


class GuidedConstraint:
    """One answer's way through its grammar. Decode thread only. See `request.Constraint`."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher
        self.allowed = matcher.compute_bitmask()
        self.is_complete = False

    def accept(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self.is_complete = self._matcher.is_stopped()
        if not self.is_complete:
            self.allowed = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ConstraintFailed(_first_line(self._matcher.get_error()))

    def allowed_after(self, token_ids: Sequence[int]) -> bytes | None:
        ahead = self._matcher.deep_copy()
        num_consumed = ahead.try_consume_tokens(list(token_ids))
        if num_consumed < len(token_ids) or ahead.is_stopped():
            return None
        return ahead.compute_bitmask()


class CompiledGrammar:
    """Immutable; see `request.Grammar`."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher

    def start(self) -> GuidedConstraint:
        return GuidedConstraint(self._matcher.deep_copy())


def bits_without(token_ids: Iterable[int], vocab_size: int) -> bytes:
    """Returns what `Constraint.allowed` is where all tokens are but these."""
    bits = bytearray(b"\xff" * (4 * -(-vocab_size // 32)))  # whole words, as grammars have them
    for token_id in token_ids:
        bits[token_id // 8] &= ~(1 << token_id % 8)
    return bytes(bits)


class GrammarCompiler:
    """For one tokenizer. Any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` counts the model's logits, which may be more than the tokenizer's tokens."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = Lock()  # so that the slow part, reading the vocabulary, is done once
        self._vocabulary: LLTokenizer | None = None
        self.compile = lru_cache(MAX_COMPILED)(self._compile)

    def _compile(self, spec: ConstraintSpec) -> CompiledGrammar:
        """Raises InvalidRequest when the grammar is not one, or cannot be followed here."""
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise InvalidRequest(f"{spec.field} needs {EXTRA}.", spec.field) from error
        vocabulary = self._read_vocabulary(spec.field)
        try:
            matcher = LLMatcher(vocabulary, _grammar(spec), log_level=0)
            first_step = matcher.deep_copy()
            first_step.compute_bitmask()
        except ValueError as error:  # a number beyond any float is in no JSON, for one
            raise _unusable(spec, str(error)) from None
        if matcher.is_error():
            raise _unusable(spec, matcher.get_error())
        if first_step.is_error():
            raise _unusable(spec, "no answer meets it")
        return CompiledGrammar(matcher)

    def _read_vocabulary(self, field: str) -> "LLTokenizer":
        from llguidance import LLTokenizer

        with self._lock:
            if self._vocabulary is None:
                described = self._tokenizer.as_json()
                if described is None:
                    raise InvalidRequest(
                        f"{field} needs a model with a tokenizer.json; this one has none.", field
                    )
                self._vocabulary = LLTokenizer(
                    described,
                    n_vocab=self._vocab_size,
                    eos_token=sorted(self._tokenizer.stop_token_ids),
                )
            return self._vocabulary


def _unusable(spec: ConstraintSpec, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{spec.field} cannot be used: {_first_line(reason)}", spec.field)


def _first_line(reason: str) -> str:
    return reason.strip().partition("\n")[0][:300]


def _grammar(spec: ConstraintSpec) -> str:
    from llguidance import LLMatcher

    if spec.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(spec.text, overrides=JSON_FORM)
    if spec.kind == "choice":
        texts = json.loads(spec.text)
        return LLMatcher.grammar_from_regex("|".join(re.escape(text) for text in texts))
    return LLMatcher.grammar_from_regex(spec.text)
