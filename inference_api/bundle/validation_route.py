"""The route that checks whether a bundle could be served here."""

import os
from threading import Lock

from flask import Blueprint, Response, jsonify
from pydantic import Field

from common.errors import Error
from common.operations import operation
from inference_api.bundle.check import Validation, check_bundle, invalid_file
from inference_api.errors import StartupError, Unavailable
from inference_api.settings import Settings
from inference_api.settings.bundle_file import MAX_FILE_BYTES, parse_bundle
from inference_api.web.caller import json_body
from inference_api.web.fields import Body, parse
from inference_api.web.left_aside import ReadingRules

BUSY_RETRY_AFTER_S = 5


class ValidateBody(Body):
    """The text of a bundle; it need not exist as a file."""

    bundle: str = Field(
        min_length=1,
        max_length=MAX_FILE_BYTES,
        description="The text of a bundle's file. Its sources must belong to models that this "
        "server serves, or lie in the folder of its own bundle's file.",
    )


def create_blueprint(settings: Settings) -> Blueprint:
    blueprint = Blueprint("bundle_validation", __name__)
    checking = Lock()  # one check at a time: parsing large tokenizers holds the interpreter

    @blueprint.post("/bundle/validate")
    @operation(
        "Whether a bundle could be served here, and the memory of its experts. Loads nothing.",
        {200: Validation, 400: Error, 503: Error},
        ValidateBody,
    )
    def validate() -> Response:
        body = parse(ValidateBody, json_body(), ReadingRules(refuses_unknown=True))
        if not checking.acquire(blocking=False):
            raise Unavailable(
                "Another bundle is being checked; try again later.", BUSY_RETRY_AFTER_S
            )
        try:
            return jsonify(checked(body.bundle, settings).model_dump())
        finally:
            checking.release()

    return blueprint


def checked(text: str, settings: Settings) -> Validation:
    """Checks a client's bundle. Reads only the sources of the server's own bundle and that bundle's
    folder: no other files, and no hub."""
    folder = None if settings.bundle is None else settings.bundle.folder
    own = {
        source
        for model in settings.served_models
        for source in (model.model, model.draft_model, model.medusa_heads)
    }
    foreign: list[str] = []

    def located(source: str) -> str:
        if source in own:
            return source
        path = "" if folder is None else os.path.normpath(folder / source)
        if not path.startswith(f"{folder}{os.sep}"):
            foreign.append(source)
        return path

    try:
        bundle = parse_bundle(text.encode()).with_sources(located)
        if foreign:
            raise StartupError([_refusal(source) for source in foreign])
    except StartupError as error:
        return invalid_file(error)
    return check_bundle(bundle, settings)


def _refusal(source: str) -> str:
    return (
        f"{source} is neither a source of this server nor in the folder of its bundle; check it "
        "on its own machine with `hearth bundle validate`."
    )
