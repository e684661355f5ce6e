"""Ours: list sessions, look at one, tell many at once, partition, plot and delete."""

from typing import Any, get_args

from flask import Response, request

from weights.errors import Fault, InvalidRequest, SessionNotFound
from weights.routes.answers import (
    DELETED,
    OverviewAnswer,
    PartitionAnswer,
    Said,
    SessionAnswer,
    SessionsAnswer,
    ToldAnswer,
)
from weights.routes.http import Http
from weights.schema import ObservationsBody, Page, PartitionBody, PlotFormat
from weights.service import WeightsService

MIMETYPES: dict[PlotFormat, str] = {"svg": "image/svg+xml", "png": "image/png"}


def add_session_routes(http: Http, service: WeightsService) -> None:
    routes = _SessionRoutes(http, service)
    one = "/weights/sessions/<path:session_id>"
    http.add("GET", "/weights/sessions", routes.list_sessions)
    http.add("GET", one, routes.show)
    http.add("DELETE", one, routes.delete)
    http.add("POST", f"{one}/observations", routes.tell)
    http.add("POST", f"{one}/partition", routes.partition)
    http.add("GET", f"{one}/plot", routes.plot)


class _SessionRoutes:
    """The views. No state but the service: request threads."""

    def __init__(self, http: Http, service: WeightsService) -> None:
        self._http, self._service = http, service

    def list_sessions(self) -> SessionsAnswer:
        page = Page.parse(request.args.to_dict())
        sessions = self._service.sessions(page.offset, page.limit)
        return SessionsAnswer(
            sessions=[SessionAnswer.of(one) for one in sessions],
            offset=page.offset,
            limit=page.limit,
        )

    def show(self, session_id: str) -> OverviewAnswer:
        page = Page.parse(request.args.to_dict())
        overview = self._service.overview(session_id)
        history = self._service.history(session_id, page.offset, page.limit)
        return OverviewAnswer.of_overview(overview, history, page.offset, page.limit)

    def delete(self, session_id: str) -> Said:
        if not self._service.delete(session_id):
            raise SessionNotFound(session_id)
        return Said(status_code=200, message=DELETED.format(session_id))

    def tell(self, session_id: str) -> ToldAnswer:
        body = self._http.body(ObservationsBody)
        return ToldAnswer.of(self._service.tell(session_id, body.problem, body.all_observations))

    def partition(self, session_id: str) -> PartitionAnswer:
        body = self._http.body(PartitionBody)
        given = body.weights_within(self._service.find(session_id).problem)
        return PartitionAnswer.of(
            *self._service.layers(session_id, body.num_layers, body.min_layers, given)
        )

    def plot(self, session_id: str) -> Response:
        # matplotlib takes half a second to import: only who wants a picture waits for it.
        from weights.plot import draw

        plot_format = _plot_format()
        overview = self._service.overview(session_id)
        picture = draw(overview, self._service.recent(overview.session), plot_format)
        return Response(picture, content_type=MIMETYPES[plot_format])


def _plot_format() -> PlotFormat:
    wanted: Any = request.args.get("format", "svg")
    if wanted not in MIMETYPES:
        known = " or ".join(get_args(PlotFormat))
        raise InvalidRequest([Fault(("query", "format"), f"format must be {known}", "enum")])
    return wanted  # type: ignore[no-any-return]
