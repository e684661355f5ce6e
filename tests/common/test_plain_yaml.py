"""Plain YAML: hostile texts are refused before they cost anything."""

from pathlib import Path

import pytest

from common.plain_yaml import MAX_NODES, UnusableYaml, read_yaml


def test_values_are_those_of_yaml_and_dates_stay_texts() -> None:
    value, doubled = read_yaml("a: [1, 1.5, true, ~, text, '2', 2024-01-02]\nb: {c: -1}")
    assert value == {"a": [1, 1.5, True, None, "text", "2", "2024-01-02"], "b": {"c": -1}}
    assert doubled == []


def test_keys_that_are_there_twice_are_told_with_their_lines() -> None:
    _, doubled = read_yaml("a: 1\nb: {c: 1, c: 2}\na: 3")
    assert doubled == [
        "line 3: 'a' appears twice; remove one.",
        "line 2: 'c' appears twice; remove one.",
    ]


def test_a_billion_laughs_are_refused_at_the_first() -> None:
    laughs = ["a0: &a0 [lol, lol]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30))]
    with pytest.raises(UnusableYaml, match=r"line 1, column 5: anchors and aliases \(& and \*\)"):
        read_yaml("\n".join(laughs))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: *b", "anchors and aliases"),
        ("<<: {a: 1}\nb: !!set {x}", "line 2, column 4: tags (!) are not allowed"),
        ("a: !!python/object/apply:os.system [x]", "tags (!) are not allowed"),
        ("a: ! x", "tags (!) are not allowed"),
        ("1: 2", "line 1, column 1: a key is not a string; put it in quotes"),
        ("? [a]\n: b", "a key is not a string"),
        ("[" * 100_000, "column 9: nested more than 8 levels deep; flatten it"),
        ("- " * 100_000, "nested more than 8 levels deep"),
        ("{a: " * 100_000, "nested more than 8 levels deep"),
        ("- 1\n" * 60_000, f"line {MAX_NODES}, column 3: more than {MAX_NODES} keys and values"),
        ("a: " + "9" * 250_000, "a text of 250000 characters; give at most 4096"),
        ("a: 1" + ":59" * 1300 + ".5", "int too large to convert to float"),
        ("a: b\0c", "line 1: special characters are not allowed"),
        ("a: 1\n---\nb: 2", "line 2, column 1: but found another document"),
        ("a: [1", "line 1"),
        ("\t- a", "line 1, column 1"),
    ],
)
def test_what_is_not_plain_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UnusableYaml) as caught:
        read_yaml(text)
    assert problem in str(caught.value)


def test_refusal_opens_no_file(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(UnusableYaml):
        read_yaml(f"a: !!python/object/apply:pathlib.Path.touch [{made}]")
    assert not made.exists()
