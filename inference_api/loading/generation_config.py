"""A model's default sampling parameters, from its generation_config.json."""

import logging
import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from inference_api.loading.json_files import read_json

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
# The bounds for requests: least, greatest. That of a penalty is exclusive.
BOUNDS = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 10.0),
}

Defaults = Mapping[str, float]  # used for parameters that a request does not set
NO_DEFAULTS: Defaults = MappingProxyType({})


def read_defaults(model_dir: Path) -> Defaults:
    """Returns the parameters of `BOUNDS` in the folder's file; a GGUF file has none. Values out of
    bounds are logged and left out. Raises StartupError if the file cannot be read."""
    file = model_dir / GENERATION_CONFIG
    content = read_json(file, required=False)
    listed = {name: content[name] for name in BOUNDS if content.get(name) is not None}
    defaults = {name: value for name, value in listed.items() if _is_in_bounds(name, value)}
    for name in listed.keys() - defaults.keys():
        logger.warning(
            "%s=%s in %s is ignored: it is no number from %g to %g",
            *(name, reprlib.repr(listed[name]), file, *BOUNDS[name]),
        )
    return MappingProxyType(defaults)


def _is_in_bounds(name: str, value: object) -> bool:
    least, greatest = BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, type(least) | int):
        return False
    return least <= value <= greatest and not (value == 0 and name == "repetition_penalty")
