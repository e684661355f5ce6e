"""The reference's routes: update, generate, delete and log."""

import logging

from common.http_routes import HttpRoutes
from common.operations import operation
from weights.routes.answers import (
    DELETED,
    LOGGED,
    NOT_FOUND,
    GeneratedAnswer,
    LoggedAnswer,
    Said,
    ToldAnswer,
    problems,
)
from weights.schema import DeleteBody, GenerateBody, LogBody, UpdateBody
from weights.service import WeightsService

logger = logging.getLogger(__name__)


def add_update_routes(http: HttpRoutes, service: WeightsService) -> None:
    @http.post("/weights_update")
    @operation("Tell a measurement.", {200: ToldAnswer, **problems(409, 413, 422, 503)}, UpdateBody)
    def update(body: UpdateBody) -> ToldAnswer:
        return ToldAnswer.of(service.tell(body.session_id, body.problem, [body.observation]))

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
    @operation("Delete a session.", {200: Said, **problems(413, 422, 503)}, DeleteBody)
    def delete(body: DeleteBody) -> Said:
        text = DELETED if service.delete(body.session_id) else NOT_FOUND
        return Said(status_code=200, message=text.format(body.session_id))

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
