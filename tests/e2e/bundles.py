"""Bundles of the embedded model, in several forms, for the tests that serve them."""

import json
from pathlib import Path
from typing import Any

from inference_api.settings import EMBEDDED_MODEL

FORMS = {"eight": "int8", "four": "int4", "plain": "none"}
FAST_MEMORY = 16 * 2**20  # room for eight and four, or for plain


def expert(name: str, form: str = "int4", **keys: Any) -> dict[str, Any]:
    own = {"name": name, "source": str(EMBEDDED_MODEL), "quantisation": form, "context": 256}
    return own | {"rows": {"min": 1, "max": 4}, "description": f"Made {form}."} | keys


EXPERTS = tuple(expert(name, form) for name, form in FORMS.items())


def bundle_file(folder: Path, experts: Any = EXPERTS, **keys: Any) -> Path:
    limits = {"version": 1, "memory_limit": "1GiB", "fast_memory_limit": FAST_MEMORY}
    times = {"patience_s": 0.5, "min_residence_s": 0.05}
    file = folder / "bundle.yaml"
    file.write_text(json.dumps({**limits, **times, "experts": experts, **keys}))  # YAML has JSON
    return file
