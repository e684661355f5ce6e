"""Reads the API keys for upstreams of other providers, a YAML file. They are in no answer or log.

https://api.openai.com: sk-...
https://api.anthropic.com: {x-api-key: sk-ant-...}
"""

import re
from collections.abc import Mapping

from proxy.files import read_yaml

# Keyed by the upstream's URL: the name of the header with the key, and its value.
UpstreamKeys = Mapping[str, tuple[str, str]]

_URL = re.compile(r"https?://[^\s?#]+")
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_VALUE = re.compile(r"[!-~]{1,4096}")


def parse_keys(text: str) -> UpstreamKeys:
    """Returns a file's keys. Raises ValueError that says where a mistake is, without quoting it."""
    try:
        entries = read_yaml(text) or {}
    except ValueError as error:
        where = re.search(r"line \d+", str(error))
        line = "" if where is None else f", {where[0]}"
        raise ValueError(f"no plain YAML in which each key is once{line}") from None
    if not isinstance(entries, dict):
        raise ValueError("expected a mapping of upstreams' URLs to their keys")
    return dict(_entry(number, *item) for number, item in enumerate(entries.items(), 1))


def _entry(number: int, url: object, key: object) -> tuple[str, tuple[str, str]]:
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise ValueError(f"entry {number}: expected http(s)://host[:port][/path] and its key")
    header, value = ("Authorization", key)
    if isinstance(key, dict) and len(key) == 1:
        header, value = next(iter(key.items()))
    if not isinstance(header, str) or not _NAME.fullmatch(header):
        raise ValueError(f"entry {number}: the key's header must be a name, such as x-api-key")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise ValueError(
            f"entry {number}: expected a key of up to 4096 printable characters, or {{header: key}}"
        )
    return url.rstrip("/"), (header, f"Bearer {value}" if value is key else value)
