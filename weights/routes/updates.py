"""The reference's routes: update, generate, delete and log."""

import logging

from weights.routes.answers import (
    DELETED,
    LOGGED,
    NOT_FOUND,
    GeneratedAnswer,
    LoggedAnswer,
    Said,
    ToldAnswer,
)
from weights.routes.http import Http
from weights.schema import DeleteBody, GenerateBody, LogBody, UpdateBody
from weights.service import WeightsService

logger = logging.getLogger(__name__)


def add_update_routes(http: Http, service: WeightsService) -> None:
    def update() -> ToldAnswer:
        body = http.body(UpdateBody)
        return ToldAnswer.of(service.tell(body.session_id, body.problem, [body.observation]))

    def generate() -> GeneratedAnswer:
        body = http.body(GenerateBody)
        proposals = service.ask(body.session_id, body.problem, body.count, body.seed)
        return GeneratedAnswer.of(proposals)

    def delete() -> Said:
        session_id = http.body(DeleteBody).session_id
        text = DELETED if service.delete(session_id) else NOT_FOUND
        return Said(status_code=200, message=text.format(session_id))

    def log() -> LoggedAnswer:
        body = http.body(LogBody)
        logger.info("weights=%s", body.weights)
        return LoggedAnswer(
            status_code=200,
            message=LOGGED,
            number_of_nodes=body.number_of_nodes,
            weights=tuple(body.weights),
        )

    http.add("POST", "/weights_update", update)
    http.add("POST", "/weights_gen", generate)
    http.add("POST", "/weights_update_delete", delete)
    http.add("POST", "/weights_log", log)
