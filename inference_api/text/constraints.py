"""Constrains answers to a schema, a regular expression, a choice, a grammar or tools, by
llguidance.

An extra (`requirements-constraints.txt`). The request's thread compiles a grammar. The decode
thread follows it token by token, and the sampler draws only from allowed tokens.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from inference_api.errors import ConstraintFailed, InvalidRequest
from inference_api.request import ConstraintSpec, Grammar
from inference_api.text.call_grammars import calls_grammar, of_schema, text_rule, thought_grammar
from inference_api.text.client_grammars import CLIENT_GRAMMAR, EXTRA, first_line, lark_of, unusable
from inference_api.text.tokens import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_COMPILED = 256  # compiled grammars kept for later requests
# Without this limit a small model may write white space until its tokens are used up.
JSON_FORM: "JsonCompileOptions" = {"whitespace_flexible": False}
# Limits on the work in a step of the decode thread, because a client's constraint could take any
# time. A schema with hundreds of optional members needs more items than grammars get by default.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,
}
GRAMMAR_LIMITS = LIMITS | {"step_max_items": 2_000}


class GuidedConstraint:
    """The state of one answer in its grammar. Decode thread only. See `request.Constraint`."""

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
            raise ConstraintFailed(first_line(self._matcher.get_error()))

    def allowed_after(self, token_ids: Sequence[int]) -> bytes | None:
        ahead = self._matcher.deep_copy()
        num_consumed = ahead.try_consume_tokens(list(token_ids))
        if num_consumed < len(token_ids) or ahead.is_stopped():
            return None
        return ahead.compute_bitmask()


def bits_without(token_ids: Iterable[int], vocab_size: int) -> bytes:
    """Returns a value of `Constraint.allowed` that allows all tokens except these."""
    bits = bytearray(b"\xff" * (4 * -(-vocab_size // 32)))  # whole words, like llguidance's masks
    for token_id in token_ids:
        bits[token_id // 8] &= ~(1 << token_id % 8)
    return bytes(bits)


class GrammarCompiler:
    """Compiles constraints for one tokenizer. Any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` counts the model's logits, which may exceed the tokenizer's tokens."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = Lock()  # so that the vocabulary, which is slow to read, is read once
        self._vocabulary: LLTokenizer | None = None
        self._added: dict[str, int] = {}
        self.compile = lru_cache(MAX_COMPILED)(self._compile)

    def compiled(self, spec: ConstraintSpec) -> Grammar | None:
        """Returns the grammar; None if it fails and the constraint is dispensable. Raises what
        `compile` raises."""
        try:
            return self.compile(spec)
        except InvalidRequest:
            if spec.is_dispensable:
                return None
            raise

    def _compile(self, spec: ConstraintSpec) -> Grammar:
        """Returns the grammar. Raises InvalidRequest if it is invalid, or not supported here."""
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            raise InvalidRequest(f"{spec.field} needs {EXTRA}.", spec.field) from error
        vocabulary = self._read_vocabulary(spec.field)
        try:
            has_grammar = spec.kind == "grammar" or CLIENT_GRAMMAR in spec.text  # or within tools
            limits = LLParserLimits(**(GRAMMAR_LIMITS if has_grammar else LIMITS))
            matcher = LLMatcher(vocabulary, self._grammar(spec), log_level=0, limits=limits)
            first_step = matcher.deep_copy()
            first_step.compute_bitmask()
            if matcher.is_error():
                raise unusable(spec, _culprit(spec) + matcher.get_error())
            if first_step.is_error():
                raise unusable(spec, "no answer meets it")
        except BaseException as error:  # the library's panics, too, which are no Exceptions
            if isinstance(error, Exception) and not isinstance(error, ValueError):
                raise
            raise unusable(spec, str(error)) from None
        # Answers start from the first step's result.
        return lambda: GuidedConstraint(first_step.deep_copy())

    def _grammar(self, spec: ConstraintSpec) -> str:
        thought = self._tokenizer.dialect.thought
        if spec.kind != "calls" and (thought is None or spec.thinking == "never"):
            return _grammar(spec)
        rules = ["%llguidance {}"]
        if thought is None or spec.thinking == "never":
            rules.append("start: body")
        else:
            rules += thought_grammar(thought, spec.thinking == "begun", self._terminal)
        if spec.kind == "calls":
            calls = json.loads(spec.text)
            rules.append(calls_grammar(calls, self._tokenizer.dialect, self._terminal))
        else:
            rules.append(f"body: {text_rule(spec)}")
        return "\n".join(rules)

    def _terminal(self, text: str) -> str:
        """Returns a literal text for Lark; a special token of llguidance as that token."""
        token_id = self._added.get(text)
        if token_id is None or self._vocabulary is None:
            return json.dumps(text)
        is_token = self._vocabulary.is_special_token(token_id)
        return f"<[{token_id}]>" if is_token else json.dumps(text)

    def _read_vocabulary(self, field: str) -> "LLTokenizer":
        from llguidance import LLTokenizer

        with self._lock:
            if self._vocabulary is None:
                described = self._tokenizer.as_json()
                if described is None:
                    raise InvalidRequest(
                        f"{field} needs a model with a tokenizer.json; this one has none.", field
                    )
                added = json.loads(described)["added_tokens"]
                self._added = {token["content"]: token["id"] for token in added}
                self._vocabulary = LLTokenizer(
                    described,
                    n_vocab=self._vocab_size,
                    eos_token=sorted(self._tokenizer.stop_token_ids),
                )
            return self._vocabulary


def _culprit(spec: ConstraintSpec) -> str:
    """Returns the tool and property at fault; empty if it is not just one."""
    if spec.kind != "calls":
        return ""
    calls = json.loads(spec.text)
    for name, rule in calls["inputs"].items():
        if not _is_usable(rule):
            return f"the format of {name}: "
    for name, schema in calls["tools"].items():
        if not _is_usable(of_schema(schema)):
            shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            members = schema.get("properties")
            for member, about in members.items() if isinstance(members, dict) else ():
                if isinstance(about, dict) and not _is_usable(of_schema(shared | about)):
                    return f"the schema of {name}, property {member}: "
            return f"the schema of {name}: "
    return ""


def _is_usable(rule: str) -> bool:
    from llguidance import LLMatcher

    return not LLMatcher.validate_grammar(f"%llguidance {{}}\nstart: {rule}")


def _grammar(spec: ConstraintSpec) -> str:
    from llguidance import LLMatcher

    if spec.kind == "json_schema":
        form: JsonCompileOptions = {**JSON_FORM, "lenient": not spec.is_strict}
        return LLMatcher.grammar_from_json_schema(spec.text, overrides=form)
    if spec.kind == "grammar":
        return LLMatcher.grammar_from_lark(lark_of(spec))
    if spec.kind == "choice":
        texts = json.loads(spec.text)
        return LLMatcher.grammar_from_regex("|".join(re.escape(text) for text in texts))
    return LLMatcher.grammar_from_regex(spec.text)
