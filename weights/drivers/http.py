"""Exchanges JSON with an engine over HTTP, bounded in time and size. One thread."""

from typing import Any
from urllib.parse import urlencode

from common.fetch import FetchBounds, FetchFailed, ask
from weights.errors import EngineUnusable

MAX_ANSWER_BYTES = 64 * 2**20
CONNECT_TIMEOUT_S = 10.0
_NO_DEFAULT = object()


class HttpRefused(EngineUnusable):
    """An answer with status 300 or more. The message has the status and the text's beginning."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Http:
    """A client of one engine. `timeout_s` bounds a whole answer. Each call sends `token`."""

    def __init__(self, url: str, timeout_s: float = 600.0, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._bounds = FetchBounds(CONNECT_TIMEOUT_S, timeout_s, MAX_ANSWER_BYTES)

    def call(
        self,
        verb: str,
        path: str,
        body: object = None,
        query: dict[str, Any] | None = None,
        missing: Any = _NO_DEFAULT,
    ) -> Any:
        """Returns the answer's JSON, or `missing`, if given, for a 404. Raises HttpRefused, and
        EngineUnusable if there is no answer or it is not JSON."""
        try:
            query_text = f"?{urlencode(query, doseq=True)}" if query else ""
            answer = ask(self._url + path + query_text, self._bounds, verb, body, self._headers)
        except FetchFailed as error:
            raise EngineUnusable(
                f"{self._url} does not answer {verb} {path} ({error.__cause__}); is the engine "
                "running there?"
            ) from None
        if answer.status == 404 and missing is not _NO_DEFAULT:
            return missing
        if answer.status >= 300:
            raise HttpRefused(answer.status, answer.text)
        try:
            return answer.json() if answer.content else None
        except (ValueError, RecursionError):
            raise EngineUnusable(f"{self._url}{path} answers something that is no JSON") from None
