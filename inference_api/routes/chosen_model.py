"""The model of a request: the one it names or, for `auto`, the expert that its text is about."""

from collections.abc import Sequence
from string import punctuation
from typing import NamedTuple
from urllib.parse import quote

from inference_api.bundle_file import ROUTED
from inference_api.errors import InvalidRequest
from inference_api.settings import Settings
from inference_api.text.expert_router import ExpertRouter, Route

_AS_IT_IS = punctuation.replace("%", " ")  # in headers, beside letters and digits


class Chosen(NamedTuple):
    """`shown` is its name in the answer; `route` is there where a router chose it."""

    name: str
    shown: str
    route: Route | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What is not ASCII in the name of an expert is percent-encoded, and so is `%`."""
        return {} if self.route is None else {"X-Routed-To": quote(self.name, _AS_IT_IS)}


class ModelChoice:
    """Immutable; any request thread."""

    def __init__(self, settings: Settings, router: ExpertRouter | None) -> None:
        self._settings = settings
        self._router = router

    def check(self, asked: str) -> None:
        """Raises what `of` would raise, whatever the text."""
        if asked != ROUTED or self._settings.bundle is None:
            self._settings.name_of(asked)
        elif self._router is None:
            raise InvalidRequest(
                f"model: {ROUTED}, but no router configured; name an expert: "
                f"{', '.join(self._settings.served_names)}.",
                "model",
            )

    def of(self, asked: str, messages: Sequence[str]) -> Chosen:
        """`messages` are the user's, the oldest first. Raises UnknownModel, and InvalidRequest
        where a router is asked for and there is none, or nothing for it to read."""
        self.check(asked)
        if asked != ROUTED or self._router is None:
            return Chosen(self._settings.name_of(asked), asked)
        if not messages:
            raise InvalidRequest(
                f"model: {ROUTED} reads text, and there is none of a user; name an expert.", "model"
            )
        route = self._router.route(messages)
        return Chosen(route.expert, route.expert, route)
