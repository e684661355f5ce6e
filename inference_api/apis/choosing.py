"""Chooses a request's model: the one it names, or for `auto` the member that fits its text."""

from collections.abc import Sequence
from string import punctuation
from typing import NamedTuple
from urllib.parse import quote

from inference_api.bundle.router import MemberRouter, Route
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.served_model import ServedModel
from inference_api.errors import InvalidRequest
from inference_api.settings.bundle_file import ROUTED

_UNQUOTED = punctuation.replace("%", " ")  # not encoded in headers, like letters and digits


class ChosenModel(NamedTuple):
    """A chosen model. `shown` is its name in the answer; `route` is set if a router chose it."""

    name: str
    shown: str
    route: Route | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Returns headers about the choice, with `%` and non-ASCII in names percent-encoded."""
        return {} if self.route is None else {"X-Routed-To": quote(self.name, _UNQUOTED)}


class ModelChoice:
    """Chooses the models of requests. Immutable; any request thread."""

    def __init__(self, router: MemberRouter | None, backend: DecodeBackend) -> None:
        self._router = router
        self._backend = backend
        self._settings = backend.settings

    def check(self, name: str) -> None:
        """Raises the errors of `choose` that do not depend on the text."""
        if name != ROUTED or self._settings.bundle is None:
            self._settings.name_of(name)
        elif self._router is None:
            raise InvalidRequest(
                f"model: {ROUTED} needs a router, and the bundle has none; name an expert: "
                f"{', '.join(self._settings.served_names)}.",
                "model",
            )

    def choose(self, name: str | None, messages: Sequence[str]) -> ChosenModel:
        """Returns the model of this name; none, or an empty one, means the default model.

        `messages` are the user's, oldest first. Raises UnknownModel, or InvalidRequest for `auto`
        without a router or without text.
        """
        name = name or self._settings.default_model.name
        self.check(name)
        if name != ROUTED or self._router is None:
            return ChosenModel(self._settings.name_of(name), name)
        if not messages:
            raise InvalidRequest(
                f"model: {ROUTED} needs text of a user, and there is none; name an expert.", "model"
            )
        route = self._router.route(messages)
        return ChosenModel(route.member, route.member, route)

    def served(self, name: str | None, messages: Sequence[str]) -> tuple[ChosenModel, ServedModel]:
        """Returns the choice, and the chosen model. Raises what `choose` raises, NotReady, Draining
        and BackendFailed."""
        chosen = self.choose(name, messages)
        self._backend.check_admission()
        return chosen, self._backend.served[chosen.name]
