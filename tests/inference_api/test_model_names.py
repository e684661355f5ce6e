"""Patterns of names: what fnmatch says of them, whatever the name."""

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from inference_api.settings.server import MAX_NAME_CHARS, is_match

TEXTS = st.text(alphabet="ab\n*", max_size=12)


@given(TEXTS, TEXTS)
def test_pattern_is_fnmatchs_with_stars_alone(name: str, pattern: str) -> None:
    assert is_match(name, pattern) == fnmatchcase(name, pattern)


def test_every_other_character_stands_for_itself() -> None:
    assert not is_match("claude-3x5", "claude-3.?*")
    assert is_match("claude-[3].?", "claude-[3].*")


def test_name_longer_than_any_of_a_model_matches_no_pattern() -> None:
    assert is_match("a" * MAX_NAME_CHARS, "a*")
    assert not is_match("a" * (MAX_NAME_CHARS + 1), "a*")


def test_name_that_could_match_in_many_ways_takes_no_longer() -> None:
    assert not is_match("a" * MAX_NAME_CHARS, "*a" * 100 + "*b")
