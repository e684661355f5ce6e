"""A search for the best split, kept by a weights service that is asked over HTTP. One thread."""

import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import jwt

from common.fetch import OK, FetchBounds, FetchFailed, ask
from inference_api.errors import StartupError
from inference_api.pipeline.splits import Split, checked

BOUNDS = FetchBounds(connect_s=10.0, read_s=10.0, max_bytes=2**20)
TOKEN_S = 60  # how long a token is valid
# A search is told what was measured, so at a proxy it is more than a team's.
CLAIMS = {"team_id": "hearth", "token_id": "split-search", "role": "operator"}
MIN_LAYERS = 1  # the fewest that a rank may have
NOT_FOUND = 404


class SearchFailed(Exception):
    """The service did not answer, refused, or answered what nobody can have asked for."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status  # HTTP status of the service's answer


@dataclass(frozen=True, slots=True)
class SplitSearch:
    """A session of the service at `url`, of as many nodes as there are ranks. `jwt_secret`: signs
    a token for each call, where the service wants one."""

    url: str
    session_id: str
    num_ranks: int
    num_layers: int
    seed: int | None = None
    jwt_secret: str | None = field(default=None, repr=False)

    def ask(self, trial: int = 0) -> tuple[Split, str]:
        """The split to measure next, and the model that proposes it. Raises SearchFailed."""
        body = self._body() if self.seed is None else {**self._body(), "seed": self.seed + trial}
        answer = self._call("POST", "/weights_gen", body)
        try:
            # Asked for with `num_layers`, weights are whole layers already.
            split = tuple(round(each * self.num_layers) for each in answer["weights"])
            return self._checked(split), str(answer["model"])
        except (LookupError, TypeError, ValueError) as error:
            raise SearchFailed(f"{self.url} proposes no weights ({error!r})") from error

    def tell(self, split: Split, tokens_per_s: float) -> None:
        """Raises SearchFailed."""
        weights = [layers / self.num_layers for layers in split]
        told = {"weights": weights, "performance_metric": tokens_per_s}
        self._call("POST", "/weights_update", {**self._body(), **told})

    def overview(self) -> dict[str, Any]:
        """What the service knows of the session, once something was told. Raises SearchFailed."""
        return self._call("GET", f"{self._path}?limit=1")

    def has_converged(self) -> bool:
        """Whether further trials do not pay. Raises SearchFailed."""
        try:
            return bool(self.overview()["convergence"]["converged"])
        except SearchFailed as error:
            if error.status == NOT_FOUND:
                return False
            raise
        except (LookupError, TypeError) as error:
            raise SearchFailed(f"{self.url} has no convergence ({error!r})") from error

    def partition(self) -> dict[str, Any]:
        """The noise-aware best in whole layers, and as each engine's setting."""
        body = {"num_layers": self.num_layers, "min_layers": MIN_LAYERS}
        return self._call("POST", f"{self._path}/partition", body)

    def best(self) -> Split:
        """Raises SearchFailed."""
        try:
            return self._checked(tuple(map(int, self.partition()["layers_per_node"])))
        except (LookupError, TypeError, ValueError) as error:
            raise SearchFailed(f"{self.url} has no split ({error!r})") from error

    @property
    def _path(self) -> str:
        return f"/weights/sessions/{quote(self.session_id, safe='')}"

    def _checked(self, split: Split) -> Split:
        try:
            return checked(split, self.num_layers, self.num_ranks)
        except StartupError as error:
            raise SearchFailed(
                f"{self.url} proposes what is no split: {error.faults[0]}"
            ) from error

    def _body(self) -> dict[str, object]:
        return {
            "session_id": self.session_id,
            "number_of_nodes": self.num_ranks,
            "max_weightings": [1.0] * self.num_ranks,
            "min_weightings": [MIN_LAYERS / self.num_layers] * self.num_ranks,
            "num_layers": self.num_layers,
        }

    def _headers(self) -> dict[str, str]:
        if self.jwt_secret is None:
            return {}
        claims = CLAIMS | {"exp": int(time.time()) + TOKEN_S}
        return {"Authorization": f"Bearer {jwt.encode(claims, self.jwt_secret, 'HS256')}"}

    def _call(self, verb: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            response = ask(self.url + path, BOUNDS, verb, body, self._headers())
            answer = response.json()
        except (FetchFailed, ValueError, RecursionError) as error:
            raise SearchFailed(f"{self.url} does not answer: {error}") from error
        if not isinstance(answer, dict):
            raise SearchFailed(f"{self.url} answers no object")
        if response.status != OK:
            message = answer.get("message", response.status)
            raise SearchFailed(f"{self.url}: {message}", response.status)
        return answer
