"""Faults that pydantic finds are told in sentences with path, value, bound and remedy."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.faults import (
    fault_of,
    is_misspelt,
    keys_at,
    nearest,
    path_of,
    setting_faults,
    shown,
)


class Wheel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    radius: float = Field(ge=0, lt=100)
    spokes: int = Field(32, gt=0, le=64)


class Bike(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=8)] = "bike"
    kind: Literal["city", "road"] = "city"
    wheels: Annotated[list[Wheel], Field(min_length=1, max_length=2)] = Field([], alias="Wheels")
    spares: dict[str, Wheel | None] = {}
    is_sold: bool = False


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "it is a list; give an object; known keys: name, kind, Wheels, spares,"),
        ({"name": 3}, "name: is 3; give a text in quotes."),
        ({"name": ""}, "name: is empty; give 1 character or more."),
        ({"name": "x" * 10**6}, "name: has more than 8 characters; shorten it."),
        ({"kind": "x" * 10**6}, f"kind: is \"{'x' * 36}...; give 'city' or 'road'."),
        ({"Wheels": []}, "Wheels: has 0 entries; give 1 or more."),
        ({"Wheels": [{"radius": 1.0}] * 3}, "Wheels: has 3 entries; give 2 or fewer."),
        ({"Wheels": [{}]}, "Wheels[0].radius: is missing; give it."),
        ({"Wheels": [3]}, "Wheels[0]: is 3; give an object; known keys: radius, spokes."),
        ({"Wheels": [{"radius": -1.0}]}, "Wheels[0].radius: is -1; give 0 or more."),
        ({"Wheels": [{"radius": 1e300}]}, "Wheels[0].radius: is 1e+300; give less than 100."),
        ({"Wheels": [{"radius": True}]}, "Wheels[0].radius: is true; give a number."),
        ({"Wheels": [{"radius": 1, "spokes": 5.0}]}, "Wheels[0].spokes: is 5.0; give an integer."),
        (
            {"Wheels": [{"radius": 1, "spokes": -(10**5000)}]},
            "Wheels[0].spokes: is a number of thousands of digits; give more than 0.",
        ),
        ({"is_sold": {}}, "is_sold: is an object; give true or false."),
        (
            {"spares": {"a b": {"Radius": 1.0}}},
            'spares."a b".Radius: is not known (did you mean radius?); correct it or leave it out.',
        ),
        (
            {"x" * 10**6: 1},
            f'"{"x" * 36}...: is not known; leave it out; known keys: name, kind, Wheels, spares, '
            "is_sold.",
        ),
    ],
)
def test_sentence_names_path_value_bound_and_remedy(body: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Bike.model_validate(body)
    assert any(fault_of(each, Bike).startswith(said) for each in caught.value.errors())


def test_without_a_model_no_keys_are_listed() -> None:
    with pytest.raises(ValidationError) as caught:
        Bike.model_validate({"Wheels": [3], "color": "red"})
    assert [fault_of(each) for each in caught.value.errors()] == [
        "Wheels[0]: is 3; give an object.",
        "color: is not known; leave it out.",
    ]


def test_keys_are_found_through_lists_mappings_and_unions() -> None:
    locations: list[list[int | str]] = [["Wheels", 1], ["wheels", 0], ["spares", "any name"]]
    for location in locations:
        assert keys_at(Bike, location) == ["radius", "spokes"]
    assert keys_at(tuple[Bike, ...], [7])[:2] == keys_at(Bike, [])[:2] == ["name", "kind"]


def test_a_long_name_is_compared_with_none() -> None:
    assert nearest("Spoke", ["spokes", "radius"]) == "spokes"
    assert nearest("s" * 10**7, ["s" * 64]) is None


@pytest.mark.parametrize(
    ("name", "known", "is_wrong"),
    [
        ("temprature", "temperature", True),
        ("temperatrue", "temperature", True),
        ("MaxToken", "max_tokens", True),
        ("reasoning_format", "reasoning_effort", False),
        ("repetition_decay", "repetition_penalty", False),
        ("k", "n", False),
    ],
)
def test_a_misspelt_name_differs_by_a_letter_or_two(name: str, known: str, is_wrong: bool) -> None:
    assert is_misspelt(name, ["spokes", known]) is is_wrong


def test_a_path_quotes_what_is_no_name() -> None:
    assert path_of(["a", 3, "slo-itl", "b.c", "\n", ""]) == 'a[3].slo-itl."b.c"."\\n".""'


def test_value_is_short_and_printable() -> None:
    assert shown("\ud800\n") == '"\\ud800\\n"'
    assert len(shown("é" * 10**6)) == len(shown(b"x" * 100)) == 40


class House(BaseModel):
    rooms: int = Field(1, ge=1)
    door_secret: str = Field("", pattern="^[a-z]*$")


def test_setting_is_named_with_its_value_unless_that_may_be_a_secret() -> None:
    with pytest.raises(ValidationError) as caught:
        House.model_validate({"rooms": "a; b", "door_secret": "OPEN; SESAME"})
    assert setting_faults(caught.value) == [
        "ROOMS='a; b': give an integer, or unset it.",
        "DOOR_SECRET=***: give one that fits ^[a-z]*$, or unset it.",
    ]
