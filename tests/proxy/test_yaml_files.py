"""The proxy's files are plain YAML: what they say is what is meant, or they are refused."""

from collections.abc import Callable

import pytest

from proxy.access.policy import parse_policy
from proxy.upstreams.routes import parse_routes
from proxy.upstreams.specs import parse_keys, parse_upstreams

ENTRIES: dict[Callable[[str], object], tuple[str, str]] = {  # the list, and an entry in it
    parse_policy: ("teams:\n", " {0}: {{max_concurrent: 1}}\n"),
    parse_routes: ("routes:\n", " {0}: [{{server: a}}]\n"),
    parse_upstreams: ("upstreams:\n", " - {{url: 'http://a', {0}: b}}\n"),
    parse_keys: ("", "{0}: key\n"),
}


@pytest.mark.parametrize("parse", ENTRIES)
@pytest.mark.parametrize("name", ["no", "On", "12:30:00", "0x10", "1_000", "~", "42"])
def test_name_that_yaml_takes_for_no_text_is_refused(
    parse: Callable[[str], object], name: str
) -> None:
    """A team `no` would go without its limits, as nobody is called `False`."""
    head, entry = ENTRIES[parse]
    with pytest.raises(ValueError, match=r"no plain YAML.*line [12]"):
        parse(head + entry.format(name))


@pytest.mark.parametrize("parse", ENTRIES)
def test_text_that_says_two_things_or_explodes_is_refused(parse: Callable[[str], object]) -> None:
    head, entry = ENTRIES[parse]
    whole = head + entry.format("'http://a'")
    laughs = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    for text in (whole + whole, f"a0: &a0 [x]\n{laughs}{whole}", whole + "[" * 100_000):
        with pytest.raises(ValueError, match="line"):
            parse(text)
