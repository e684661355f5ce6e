"""Joins the lists of models of all servers, without those a team may not use. Pure functions."""

import json
from collections.abc import Collection, Sequence
from typing import Any

from pydantic_core import from_json

from proxy.clients.answer_scan import ENCODINGS, Inflater

LIST_PATH = "/v1/models"
MAX_LIST_BYTES = 1024 * 1024


def model_of(path: str) -> str | None:
    """Returns the model that a plain path asks about, if any."""
    return path.removeprefix(f"{LIST_PATH}/") if path.startswith(f"{LIST_PATH}/") else None


def read_list(answer: bytes, encoding: str) -> dict[str, Any]:
    """Returns an upstream's list. Raises ValueError if the answer has none."""
    if encoding.strip().lower() in ENCODINGS:
        answer = b"".join(Inflater().feed(answer))
    fields = from_json(answer)
    if not isinstance(fields, dict):
        raise ValueError("a list of models that is no JSON object")
    return fields


def joined(answers: Sequence[dict[str, Any]], models: Collection[str] | None) -> bytes:
    """Returns the first list, as JSON, with the other lists' models added, each model once. Leaves
    out models that are not in `models`, unless that is None."""
    fields = answers[0]
    # llama-server's answer has two lists.
    shown = {key: _named(answers, key, models) for key in fields if isinstance(fields[key], list)}
    if "first_id" in fields:  # Anthropic's format
        ids = [_name(each) for each in shown.get("data", ())] or [None]
        fields |= {"first_id": ids[0], "last_id": ids[-1]}
    return json.dumps(fields | shown).encode()


def _named(
    answers: Sequence[dict[str, Any]], key: str, models: Collection[str] | None
) -> list[Any]:
    found: dict[str, Any] = {}
    for answer in answers:
        listed = answer.get(key)
        for entry in listed if isinstance(listed, list) else ():
            name = _name(entry)
            if name is not None and (models is None or name in models):
                found.setdefault(name, entry)
    return list(found.values())


def _name(entry: Any) -> str | None:
    if isinstance(entry, dict):
        entry = entry.get("id") or entry.get("model") or entry.get("name")
    return entry if isinstance(entry, str) else None
