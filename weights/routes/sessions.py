"""The reference's routes (update, generate, delete, log) and Hearth's own (list sessions, read one,
tell many measurements at once, partition, delete).
"""

import logging
from dataclasses import replace

from flask import request
from werkzeug.routing import PathConverter

from common.http_routes import HttpRoutes
from common.operations import operation
from weights.errors import SessionNotFound
from weights.partition import layers_of
from weights.routes.answers import (
    DELETED,
    LOGGED,
    NOT_FOUND,
    GeneratedAnswer,
    LoggedAnswer,
    OverviewAnswer,
    PartitionAnswer,
    ReferenceAnswer,
    SessionAnswer,
    SessionsAnswer,
    UpdateAnswer,
    problems,
)
from weights.schema import (
    DeleteBody,
    GenerateBody,
    LogBody,
    ObservationsBody,
    Page,
    PartitionBody,
    UpdateBody,
)
from weights.service import WeightsService

logger = logging.getLogger(__name__)

SESSION = "/weights/sessions/<session:session_id>"
PAGE = Page.model_json_schema()["properties"]


class SessionConverter(PathConverter):
    """A session's id in a path: any text, even with a slash at its start or a line break."""

    regex = "(?s:.+?)"
    part_isolating = False


def add_update_routes(http: HttpRoutes, service: WeightsService) -> None:
    @http.post("/weights_update")
    @operation(
        "Tell a measurement.", {200: UpdateAnswer, **problems(409, 413, 422, 503)}, UpdateBody
    )
    def update(body: UpdateBody) -> UpdateAnswer:
        return UpdateAnswer.of(service.tell(body.session_id, body.problem, [body.observation]))

    @http.post("/weights_gen", in_turn=True)
    @operation(
        "Ask for weights to measure.",
        {200: GeneratedAnswer, **problems(409, 413, 422, 503)},
        GenerateBody,
    )
    def generate(body: GenerateBody) -> GeneratedAnswer:
        proposals = service.ask(body.session_id, body.problem, body.count, body.seed)
        return GeneratedAnswer.of(proposals)

    @http.post("/weights_update_delete")
    @operation("Delete a session.", {200: ReferenceAnswer, **problems(413, 422, 503)}, DeleteBody)
    def delete(body: DeleteBody) -> ReferenceAnswer:
        text = DELETED if service.delete(body.session_id) else NOT_FOUND
        return ReferenceAnswer(status_code=200, message=text.format(body.session_id))

    @http.post("/weights_log")
    @operation("Check weights and echo them.", {200: LoggedAnswer, **problems(413, 422)}, LogBody)
    def log(body: LogBody) -> LoggedAnswer:
        logger.info("weights=%s", body.weights)
        return LoggedAnswer(
            status_code=200,
            message=LOGGED,
            number_of_nodes=body.number_of_nodes,
            weights=tuple(body.weights),
        )


def add_session_routes(http: HttpRoutes, service: WeightsService) -> None:
    @http.get("/weights/sessions")
    @operation("All sessions, in pages.", {200: SessionsAnswer, **problems(422, 503)}, query=PAGE)
    def list_sessions() -> SessionsAnswer:
        page = Page.parse(request.args.to_dict())
        sessions = service.sessions(page.offset, page.limit)
        return SessionsAnswer(
            sessions=[SessionAnswer.of(session) for session in sessions],
            offset=page.offset,
            limit=page.limit,
        )

    @http.get(SESSION, in_turn=True)
    @operation(
        "A session: history in pages, best, best when noise is accounted for, convergence.",
        {200: OverviewAnswer, **problems(404, 422, 503)},
        query=PAGE,
    )
    def show(session_id: str) -> OverviewAnswer:
        page = Page.parse(request.args.to_dict())
        session = service.find(session_id)
        history = service.history(session_id, page.offset, page.limit)
        return OverviewAnswer.of_assessed(session, service.assess(session), history, page)

    @http.delete(SESSION)
    @operation("Delete a session.", {200: ReferenceAnswer, **problems(404, 503)})
    def delete(session_id: str) -> ReferenceAnswer:
        if not service.delete(session_id):
            raise SessionNotFound(session_id)
        return ReferenceAnswer(status_code=200, message=DELETED.format(session_id))


def add_measure_routes(http: HttpRoutes, service: WeightsService) -> None:
    @http.post(f"{SESSION}/observations")
    @operation(
        "Tell many measurements at once, all or none.",
        {200: UpdateAnswer, **problems(409, 413, 422, 503)},
        ObservationsBody,
    )
    def tell(body: ObservationsBody, session_id: str) -> UpdateAnswer:
        return UpdateAnswer.of(service.tell(session_id, body.problem, body.all_observations))

    @http.post(f"{SESSION}/partition", in_turn=True)
    @operation(
        "Weights as whole layers, in the forms that engines read.",
        {200: PartitionAnswer, **problems(404, 413, 422, 503)},
        PartitionBody,
    )
    def partition(body: PartitionBody, session_id: str) -> PartitionAnswer:
        session = service.find(session_id)
        problem = replace(session.problem, num_layers=body.num_layers)
        weights = body.weights_within(problem) or service.assess(session).best.shares
        return PartitionAnswer.of(weights, layers_of(weights, problem, body.min_layers))
