"""JSON over HTTP to an engine: bounded in time and size. One thread."""

import json
import time
from typing import Any

import requests

from weights.errors import EngineUnusable

MAX_ANSWER_BYTES = 64 * 2**20
CHUNK_BYTES = 2**16
CONNECT_TIMEOUT_S = 10.0
_NO_DEFAULT = object()


class HttpRefused(Exception):
    """An answer of 400 or more; the message has its status and the beginning of its text."""


class Http:
    """`timeout_s`: for a whole answer."""

    def __init__(self, url: str, timeout_s: float = 600.0) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session = requests.Session()

    def close(self) -> None:
        self._session.close()

    def call(
        self,
        verb: str,
        path: str,
        body: object = None,
        query: dict[str, Any] | None = None,
        missing: Any = _NO_DEFAULT,
    ) -> Any:
        """Returns the answer's JSON, `missing` for a 404. Raises HttpRefused, and EngineUnusable
        where there is no answer or one that is no JSON."""
        try:
            with self._session.request(
                verb,
                self._url + path,
                json=body,
                params=query,
                timeout=(CONNECT_TIMEOUT_S, self._timeout_s),
                stream=True,
                allow_redirects=False,
            ) as response:
                raw = self._read(response)
        except requests.RequestException as error:
            raise EngineUnusable(
                f"{self._url} does not answer {verb} {path}: {type(error).__name__}; is the engine "
                "running there?"
            ) from None
        if response.status_code == 404 and missing is not _NO_DEFAULT:
            return missing
        if response.status_code >= 300:
            raise HttpRefused(f"{response.status_code} {raw[:300].decode(errors='replace')}")
        try:
            return json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            raise EngineUnusable(f"{self._url}{path} answers something that is no JSON") from None

    def _read(self, response: requests.Response) -> bytes:
        until_s = time.monotonic() + self._timeout_s
        raw = bytearray()
        for chunk in response.iter_content(CHUNK_BYTES):
            raw += chunk
            if len(raw) > MAX_ANSWER_BYTES or time.monotonic() > until_s:
                raise EngineUnusable(
                    f"{response.url} sends more than {MAX_ANSWER_BYTES} bytes or for longer than "
                    f"{self._timeout_s:g} s"
                )
        return bytes(raw)
