"""Invented words, and questions disturbed by them.

A model that meets only well-formed wordings leans on every word of them. Training questions
therefore lose some function words, or have them replaced by invented ones, so that the words that
matter carry the answer and an unseen wording does not derail it.
"""

from random import Random

_ONSETS = (
    *("b", "c", "ch", "d", "dr", "f", "g", "h", "j", "k", "kr", "l", "m", "n"),
    *("p", "r", "s", "st", "t", "v", "w", "z"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "", "l", "m", "n", "r", "s", "th")
_FUNCTION_WORDS = frozenset(
    (
        *("what", "which", "is", "the", "a", "an", "of", "do", "does", "you", "me", "can", "could"),
        *("tell", "please", "i", "it", "that", "know", "how", "would", "give", "want", "like"),
        *("say", "name", "are", "there", "my"),
    )
)
_DROP_SHARE = 0.25
_REPLACE_SHARE = 0.1


def invent_word(rng: Random) -> str:
    syllables = rng.randint(1, 3)
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
    )


def disturb(question: str, rng: Random) -> str:
    """The question with some function words dropped or replaced by invented words."""
    words = []
    for word in question.split(" "):
        if word.lower() in _FUNCTION_WORDS:
            draw = rng.random()
            if draw < _DROP_SHARE:
                continue
            if draw < _DROP_SHARE + _REPLACE_SHARE:
                word = invent_word(rng)
        words.append(word)
    return " ".join(words)
