"""Routes that show, load and unload the members of a bundle, or check another bundle."""

import os
from collections.abc import Callable
from concurrent.futures import TimeoutError as NoAnswer
from threading import Lock

from flask import Blueprint, Response, jsonify, request
from pydantic import Field

from common.errors import Error
from common.operations import operation
from inference_api.bundle.cards import BundleState, ExpertState, bundle_state
from inference_api.bundle.check import Validation, check_bundle, invalid_file
from inference_api.bundle.members import UnloadMode
from inference_api.bundle.residency import Residency
from inference_api.bundle.residents import Answer, BundleResidents, bundle_of
from inference_api.core.decode_backend import DecodeBackend
from inference_api.errors import InvalidRequest, NoBundle, StartupError, Unavailable, UnknownModel
from inference_api.settings import Settings
from inference_api.settings.bundle_file import MAX_FILE_BYTES, parse_bundle
from inference_api.web.caller import read_strictly
from inference_api.web.fields import Body

UNLOAD_QUERY = {
    "drain": {"type": "string", "description": "Let its rows finish first.", "enum": [""]},
    "force": {"type": "string", "description": "End its rows at once.", "enum": [""]},
}
BUSY_RETRY_AFTER_S = 5


class ValidateBody(Body):
    """The text of a bundle; it need not exist as a file."""

    bundle: str = Field(
        min_length=1,
        max_length=MAX_FILE_BYTES,
        description="The text of a bundle's file. Its sources must belong to models that this "
        "server serves, or lie in the folder of its own bundle's file.",
    )


def _state(backend: DecodeBackend) -> BundleState:
    """Returns the bundle's state. Raises the errors of `_residents`."""
    _residents(backend)
    state = bundle_state(backend)
    assert state is not None
    return state


def _member(backend: DecodeBackend, name: str) -> ExpertState:
    return next(each for each in _state(backend)["experts"] if each["name"] == name)


def _ask(
    backend: DecodeBackend, name: str, question: Callable[[Residency, float], Answer]
) -> Answer:
    """Has the decode thread answer a question about a member. Raises the question's errors,
    NoBundle, UnknownModel, and the errors that a new request would get."""
    residents = _residents(backend)
    names = list(residents.snapshot.members)
    if name not in names:
        raise UnknownModel(name, names)
    backend.check_admission()
    try:
        return residents.ask(question)
    except NoAnswer:
        raise Unavailable(
            "The decode thread is busy with a long step; try again later.", BUSY_RETRY_AFTER_S
        ) from None


def _residents(backend: DecodeBackend) -> BundleResidents:
    """Returns the bundle's members. Raises NoBundle, or NotReady before they are known."""
    if backend.settings.bundle is None:
        raise NoBundle
    residents = bundle_of(backend)
    if residents is None:
        backend.check_admission()
        raise NoBundle(is_mock=True)
    return residents


def create_blueprint(backend: DecodeBackend) -> Blueprint:
    blueprint = Blueprint("bundle", __name__)
    checking = Lock()  # one check at a time, because parsing large tokenizers holds the GIL

    @blueprint.get("/bundle")
    @operation(
        "The experts of the bundle, and the memory and rows they share.",
        {200: BundleState, 404: Error, 503: Error},
    )
    def state() -> Response:
        """Answers also while members load at start, and while the server drains."""
        return jsonify(_state(backend))

    @blueprint.post("/bundle/load/<path:name>")
    @operation(
        "Load an expert into memory, also one that failed: 200 if it is resident, else 202.",
        {200: ExpertState, 202: ExpertState, 404: Error, 503: Error},
    )
    def load(name: str) -> tuple[Response, int]:
        """Idempotent."""
        is_resident = _ask(backend, name, lambda residency, now_s: residency.ask_load(name, now_s))
        return jsonify(_member(backend, name)), 200 if is_resident else 202

    @blueprint.post("/bundle/unload/<path:name>")
    @operation(
        "Unload an expert: if it is idle, after its rows have ended, or at once.",
        {202: ExpertState, 400: Error, 404: Error, 409: Error, 503: Error},
        query=UNLOAD_QUERY,
    )
    def unload(name: str) -> tuple[Response, int]:
        """Idempotent. Requests that wait for the member cause it to be loaded again."""
        mode = _unload_mode()
        _ask(backend, name, lambda residency, now_s: residency.ask_unload(name, mode, now_s))
        return jsonify(_member(backend, name)), 202

    @blueprint.post("/bundle/validate")
    @operation(
        "Whether a bundle could be served here, and the memory of its experts. Loads nothing.",
        {200: Validation, 400: Error, 503: Error},
        ValidateBody,
    )
    def validate() -> Response:
        body = read_strictly(ValidateBody)
        if not checking.acquire(blocking=False):
            raise Unavailable(
                "Another bundle is being checked; try again later.", BUSY_RETRY_AFTER_S
            )
        try:
            return jsonify(checked(body.bundle, backend.settings).model_dump())
        finally:
            checking.release()

    return blueprint


def _unload_mode() -> UnloadMode:
    """Raises InvalidRequest."""
    names = list(request.args)
    if not names:
        return UnloadMode.IDLE
    if len(names) > 1 or names[0] not in UNLOAD_QUERY:
        raise InvalidRequest(f"Unloading takes ?drain or ?force, not ?{'&'.join(names)[:100]}.")
    return UnloadMode(names[0])


def checked(text: str, settings: Settings) -> Validation:
    """Checks a client's bundle. Reads only the server's own sources and files in the folder of its
    bundle: no other files, and no hub."""
    folder = None if settings.bundle is None else settings.bundle.folder
    own_sources = {
        source
        for model in settings.served_models
        for source in (model.model, model.draft_model, model.medusa_heads)
    }
    foreign: list[str] = []

    def located(source: str) -> str:
        if source in own_sources:
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
