"""What another server answers over HTTP, bounded in bytes and time: whatever listens there."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import requests
from urllib3.exceptions import HTTPError

MAX_REASON = 300  # characters


class FetchFailed(Exception):
    """Nobody answered, or not with a whole page of status 200 within the bounds."""


@dataclass(frozen=True, slots=True)
class FetchBounds:
    """`read_s` is for the whole answer and for each wait within it."""

    connect_s: float
    read_s: float
    max_bytes: int


def fetch(url: str, bounds: FetchBounds, headers: Mapping[str, str] | None = None) -> bytes:
    """Returns the body. Follows no redirect and uses no proxy, whatever the environment says.
    Raises FetchFailed."""
    try:
        with requests.Session() as session:
            session.trust_env = False
            with session.get(
                url,
                headers=headers,
                timeout=(bounds.connect_s, bounds.read_s),
                stream=True,
                allow_redirects=False,
            ) as response:
                return _body_of(response, bounds)
    except (requests.RequestException, HTTPError, OSError, ValueError) as error:
        raise FetchFailed(f"{url}: {error}"[:MAX_REASON]) from error


def _body_of(response: requests.Response, bounds: FetchBounds) -> bytes:
    """As much as it sends at a time, so that a slow sender is seen to be one."""
    if response.status_code != requests.codes.ok:
        raise FetchFailed(f"{response.url} answers {response.status_code}"[:MAX_REASON])
    until_s, content = time.monotonic() + bounds.read_s, b""
    while piece := response.raw.read1(2**16, decode_content=True):
        content += piece
        if len(content) > bounds.max_bytes:
            raise FetchFailed(f"{response.url} has more than {bounds.max_bytes} bytes")
        if time.monotonic() > until_s:
            raise FetchFailed(f"{response.url} took more than {bounds.read_s:g} s")
    return content
