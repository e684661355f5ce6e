"""Chooses the member for `model: "auto"` by similarity to its description and examples.

It uses TF-IDF over words and short sequences of letters, and a logistic regression. Both are from
scikit-learn, which is imported only if there is a router. `make bench-router` compares them with a
k-nearest-neighbour search among hidden states. The choice is by topic, not by difficulty.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Self

from inference_api.errors import StartupError

MAX_MESSAGES = 8  # only this many first messages of a conversation are read
MAX_CHARACTERS = 1000  # taken from a message: half from its start, half from its end
# Chosen so that probabilities learned from a few dozen texts are neither too low nor much too high:
# `make bench-router` prints their calibration error.
_INVERSE_REGULARISATION = 300.0
_TOKENS = r"[^\W\d_]+|0|[-+*/=%{}\[\]<>,]"
_MAX_WORDS, _MAX_LETTERS = 2000, 4000  # most features, which bounds the time to learn
NO_SKLEARN = (
    "router: scikit-learn is not installed; run `pip install 'hearth[router]'` (in a clone: `pip "
    "install --editable '.[router]'`), or leave `router` out of the bundle's file"
)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Route:
    """A choice. `confidence` is the probability of the likeliest member. If that is below the
    threshold, `member` is the fallback, and `method` says so."""

    member: str
    confidence: float
    method: Literal["tfidf", "fallback"]


class MemberRouter:
    """Chooses members for messages. Immutable; any thread may use it."""

    def __init__(self, classifier: Any, threshold: float, fallback: str) -> None:
        """`classifier` is a scikit-learn classifier of texts, with `predict_proba`."""
        self._classifier = classifier
        self._threshold = threshold
        self._fallback = fallback

    @classmethod
    def of(
        cls, texts_by_member: Mapping[str, Sequence[str]], threshold: float, fallback: str
    ) -> Self:
        """Returns a router that has learned descriptions and examples of members, by name. This
        takes a fraction of a second, or seconds for thousands of texts.

        A member without texts can only be the fallback. Raises StartupError if fewer than two
        members have any, or no text contains a word.
        """
        pairs = [(name, text) for name, texts in texts_by_member.items() for text in texts]
        names = [name for name, text in pairs if text.strip()]
        if len(set(names)) < 2:
            raise StartupError(
                "router: fewer than two experts have a description or examples; add some"
            )
        try:
            classifier = _text_classifier().fit([text for _, text in pairs if text.strip()], names)
        except ValueError as error:
            raise StartupError(
                f"router: descriptions and examples cannot be learned ({error}); add words"
            ) from None
        return cls(classifier, threshold, fallback)

    def route(self, messages: Sequence[str]) -> Route:
        """Returns the choice for the user's messages, oldest first. The first message that reaches
        the threshold decides, so later messages of a conversation do not change its member."""
        confidence = 0.0
        for message in messages[:MAX_MESSAGES]:
            (probabilities,) = self._classifier.predict_proba([_bounded(message)])
            likeliest = probabilities.argmax()
            confidence = float(probabilities[likeliest])
            if confidence >= self._threshold:
                return Route(str(self._classifier.classes_[likeliest]), confidence, "tfidf")
        return Route(self._fallback, confidence, "fallback")


def _bounded(message: str) -> str:
    if len(message) <= MAX_CHARACTERS:
        return message
    half = MAX_CHARACTERS // 2
    return f"{message[:half]} {message[-half:]}"


def _text_classifier() -> Any:
    """Returns an untrained classifier. It treats all numbers as one word, and symbols as words.
    Raises StartupError if scikit-learn is not installed."""
    if find_spec("sklearn") is None:
        raise StartupError(NO_SKLEARN)
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    words = TfidfVectorizer(
        preprocessor=_plain, token_pattern=_TOKENS, sublinear_tf=True, max_features=_MAX_WORDS
    )
    letters = TfidfVectorizer(
        preprocessor=_plain,
        analyzer="char_wb",
        ngram_range=(2, 4),
        sublinear_tf=True,
        max_features=_MAX_LETTERS,
    )
    regression = LogisticRegression(C=_INVERSE_REGULARISATION, max_iter=1000)
    return make_pipeline(make_union(words, letters), regression)


def _plain(text: str) -> str:
    return _DIGITS.sub("0", text.lower())
