"""The list of models, as a team may see it that may use some of them only. Pure functions."""

import json
from collections.abc import Collection
from typing import Any

from pydantic_core import from_json

from proxy.clients.inflater import ENCODINGS, Inflater

LIST_PATH = "/v1/models"
MAX_LIST_BYTES = 1024 * 1024


def model_of(path: str) -> str | None:
    """The model that a plain path asks about."""
    return path.removeprefix(f"{LIST_PATH}/") if path.startswith(f"{LIST_PATH}/") else None


def only_of(models: Collection[str], answer: bytes, encoding: str) -> bytes:
    """An upstream's list with no other models in it. Raises ValueError for what is no list."""
    if encoding.strip().lower() in ENCODINGS:
        answer = b"".join(Inflater().feed(answer))
    fields = from_json(answer)
    if not isinstance(fields, dict):
        raise ValueError("a list of models that is no JSON object")
    # llama-server has two of them.
    lists = {key: value for key, value in fields.items() if isinstance(value, list)}
    shown = {
        key: [each for each in listed if _name(each) in models] for key, listed in lists.items()
    }
    if "first_id" in fields:  # Anthropic's
        ids = [_name(each) for each in shown.get("data", ())] or [None]
        fields |= {"first_id": ids[0], "last_id": ids[-1]}
    return json.dumps(fields | shown).encode()


def _name(entry: Any) -> str | None:
    if isinstance(entry, dict):
        entry = entry.get("id") or entry.get("model") or entry.get("name")
    return entry if isinstance(entry, str) else None
