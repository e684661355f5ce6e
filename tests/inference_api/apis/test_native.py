"""Every row of the field and error tables of the native routes."""

import json
import re
from typing import Any

import pytest

from inference_api.apis.native.body import NativeBody, StrictNativeBody, parse_native_body
from inference_api.errors import InvalidRequest


def parse(**fields: Any) -> Any:
    return parse_native_body(NativeBody, json.dumps({"text": "hello"} | fields).encode())


def test_defaults() -> None:
    body = parse()
    params, sampling = body.params(), body.params().sampling
    assert (body.text, params.max_tokens, params.stop_strings) == ("hello", 128, ())
    assert (body.return_prompt, params.session_id) == (False, None)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.9, 40)


def test_numbers_may_come_as_strings() -> None:
    body = parse(temperature="0.7", top_p=" 0.5 ", top_k=" 40 ", max_tokens=40.0)
    sampling = body.params().sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.5, 40)
    assert body.params().max_tokens == 40


def test_null_means_absent() -> None:
    fields = ("temperature", "top_p", "top_k", "max_tokens", "stop_sequence", "seed", "session_id")
    body = parse(**dict.fromkeys(fields), return_prompt=None, speculation=None)
    assert body.params().speculation == "auto"
    assert body.params().max_tokens == 128
    assert body.params().stop_strings == ()
    assert body.return_prompt is False


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (True, True),
        ("True", True),
        ("1", True),
        (1, True),
        (False, False),
        ("false", False),
        ("0", False),
        (0, False),
    ],
)
def test_booleans(given: object, read: bool) -> None:
    assert parse(return_prompt=given).return_prompt is read


def test_stop_sequence_is_a_string_or_up_to_eight() -> None:
    assert parse(stop_sequence=".").params().stop_strings == (".",)
    assert parse(stop_sequence="").params().stop_strings == ()
    assert parse(stop_sequence=list("abcdefgh")).params().stop_strings == tuple("abcdefgh")


@pytest.mark.parametrize("temperature", [0, 0.01, 100])
def test_temperature_zero_and_the_bounds_are_accepted(temperature: float) -> None:
    assert parse(temperature=temperature).params().sampling.temperature == temperature
    assert parse(temperature=temperature).params().sampling.is_greedy is (temperature == 0)


def test_same_seed_is_kept_and_no_seed_is_drawn() -> None:
    assert parse(seed=7).params().sampling.seed == 7
    assert parse(seed=-2).params().sampling.seed == 2**64 - 2
    assert parse().params().sampling.seed != parse().params().sampling.seed


def test_unknown_fields_are_ignored() -> None:
    assert parse(colour="blue").text == "hello"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"null", b"\xff", b'{"text": NaN}', b"9" * 5000],
)
def test_what_is_no_json_object_is_malformed(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^Malformed JSON request body\.$"):
        parse_native_body(NativeBody, body)


@pytest.mark.parametrize("depth", [130, 30_000])
def test_depth_has_a_bound(depth: int) -> None:
    body = b'{"text": "a", "deep": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(InvalidRequest, match="is nested more than 100 levels deep; flatten it"):
        parse_native_body(NativeBody, body)


def test_half_of_a_character_is_named_wherever_it_is() -> None:
    body = rb'{"text": "\ud83d\ude00", "extra": [{"a": ["fine", "b\udc00"]}]}'
    with pytest.raises(
        InvalidRequest, match=r"extra\[0\]\.a\[1\] has half .* character 1"
    ) as caught:
        parse_native_body(NativeBody, body)
    assert caught.value.param == "extra"
    with pytest.raises(InvalidRequest, match="A name has half of a surrogate pair"):
        parse_native_body(NativeBody, rb'{"text": "a", "\ud800": 1}')


@pytest.mark.parametrize("temperature", [0, "0", 0.001])
def test_strict_bounds_know_no_greedy_temperature(temperature: object) -> None:
    body = json.dumps({"text": "hello", "temperature": temperature}).encode()
    with pytest.raises(InvalidRequest, match=r"outside bounds, 0\.01 <= temperature"):
        parse_native_body(StrictNativeBody, body)


@pytest.mark.parametrize("text", [None, ""])
def test_text_is_required(text: object) -> None:
    with pytest.raises(InvalidRequest, match="either empty or not provided"):
        parse(text=text)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text", 5, "text is type=integer, expected string"),
        ("temperature", "warm", "temperature is type=string, expected number"),
        ("temperature", True, "temperature is type=boolean, expected number"),
        ("top_p", "nan", "top_p is type=string, expected number"),
        ("top_p", "1_0", "top_p is type=string, expected number"),
        ("top_k", "3.5", "top_k is type=string, expected integer"),
        ("top_k", 3.7, "top_k is type=number, expected integer"),
        ("max_tokens", [1], "max_tokens is type=array, expected integer"),
        ("max_tokens", {"a": 1}, "max_tokens is type=object, expected integer"),
        ("stop_sequence", [1], "stop_sequence is type=array, expected string or list of strings"),
        ("return_prompt", "maybe", "return_prompt is type=string, expected boolean"),
        ("session_id", 5, "session_id is type=integer, expected string"),
        ("seed", "x", "seed is type=string, expected integer"),
        ("speculation", ["off"], "speculation is type=array, expected string"),
    ],
)
def test_wrong_types_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(f"Parameter: {message}")) as caught:
        parse(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "temperature",
            -3,
            "temperature=-3.0 is outside bounds, 0.01 <= temperature <= 100, or 0.",
        ),
        ("temperature", 1e999, "temperature=inf is outside bounds, 0.01 <= temperature <= 100, or"),
        ("temperature", -(10**400), "temperature=-inf is outside bounds, 0.01 <= temperature"),
        ("top_p", 10**400, "top_p=inf is outside bounds, 0.01 <= top_p <= 1.0."),
        ("top_p", 1.1, "top_p=1.1 is outside bounds, 0.01 <= top_p <= 1.0."),
        ("top_k", 0, "top_k=0 is outside bounds, 1 <= top_k <= 1000."),
        ("max_tokens", "9000", "max_tokens=9000 is outside bounds, 1 <= max_tokens <= 2048."),
        ("max_tokens", 10**400, "is outside bounds, 1 <= max_tokens <= 2048."),
        ("stop_sequence", ["a"] * 9, "stop_sequence=9 strings is outside bounds"),
        ("session_id", "two\r\nlines", "session_id must be"),
        ("speculation", "none", "speculation=none is not served; give 'auto', 'off', 'ngram',"),
        ("text", "\ud800", "text has half of a surrogate pair at character 0"),
    ],
)
def test_values_out_of_bounds_are_named_with_the_bound(
    field: str, value: object, message: str
) -> None:
    body = json.dumps({"text": "hello", field: value}).replace("Infinity", "1e999")
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        parse_native_body(NativeBody, body.encode())


@pytest.mark.parametrize("kind", [NativeBody, StrictNativeBody])
@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k", "max_tokens", "seed"])
def test_bounds_that_a_refusal_names_are_those_that_count(
    field: str, kind: type[NativeBody]
) -> None:
    def refusal(value: object) -> str:
        try:
            parse_native_body(kind, json.dumps({"text": "a", field: value}).encode())
        except InvalidRequest as error:
            return str(error)
        return ""

    named = re.search(r"bounds, (\S+) <= \w+ <= ([\d.]+\d)(, or 0)?\.$", refusal(-(10**30)))
    assert named is not None
    low, high = json.loads(named[1]), json.loads(named[2])
    assert refusal(low) == refusal(high) == ""
    assert refusal(low - abs(low) / 2 - 1) != ""
    assert refusal(high * 2) != ""
    if low > 0:
        assert (refusal(0) == "") == (named[3] is not None)


def test_types_are_reported_before_bounds() -> None:
    with pytest.raises(InvalidRequest, match="seed is type"):
        parse(temperature=-1, seed="x")
    with pytest.raises(InvalidRequest, match="speculation is type"):
        parse(temperature=-1, speculation=7)
