"""Requests to a Kubernetes API server, with the service account of the proxy's pod.

Plain GETs, because one list and one watch do not need the official client's hundreds of modules.
"""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

from common.addresses import http_parts
from common.fetch import OK, FetchBounds, connected
from proxy.errors import DiscoveryFailed

MAX_REFUSAL_BYTES = 64 * 1024
REMEDIES = {
    401: "the token is not accepted; is the service account still there?",
    403: "bind the Role of deploy/kubernetes/base/proxy.yaml to the service account",
}


class ApiServer:
    """A client. It uses the account's token and certificate over https, and neither over http
    (`kubectl proxy`)."""

    def __init__(self, url: str, account: Path) -> None:
        """Raises OSError for an unusable account."""
        self._parts, self._token_file = http_parts(url), account / "token"
        self._tls: ssl.SSLContext | None = None
        if self._parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=account / "ca.crt")
            self._token_file.read_text("ascii")

    @contextmanager
    def get(self, path: str, bounds: FetchBounds) -> Iterator[HTTPResponse]:
        """Returns an answer with status 200, which the caller reads within `max_bytes`. Raises
        DiscoveryFailed for another status, and OSError or HTTPException."""
        with connected(self._parts, bounds, self._tls) as connection:
            connection.request("GET", self._parts.path + path, headers=self._headers())
            with connection.getresponse() as response:
                if response.status != OK:
                    raise _refusal(response)
                yield response

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._tls is not None:
            # Read each time, because the kubelet renews it within the hour.
            token = self._token_file.read_text("ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return headers


def _refusal(response: HTTPResponse) -> DiscoveryFailed:
    status = response.status
    try:
        answer = json.loads(response.read(MAX_REFUSAL_BYTES))
        message = str(answer["message"])[:512]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = response.reason
    remedy = REMEDIES.get(status)
    return DiscoveryFailed(
        f"{status}: {message}" + (f"; {remedy}" if remedy else ""), is_gone=status == 410
    )
