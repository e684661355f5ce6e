"""A model's own words on how its tokens are to be drawn: its generation_config.json."""

import logging
import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from inference_api.loading.json_files import read_json

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
# As requests may have them: least, greatest. A least of 0 is none of `ABOVE_0`.
BOUNDS = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 10.0),
}
ABOVE_0 = ("top_p", "repetition_penalty")

Defaults = Mapping[str, float]  # values of parameters that a request does not set
NO_DEFAULTS: Defaults = MappingProxyType({})


def read_defaults(model_dir: Path) -> Defaults:
    """Returns those of `BOUNDS` that the folder's file names; a GGUF file has none. What is out of
    bounds is left out, and logged. Raises StartupError where the file cannot be read."""
    file = model_dir / GENERATION_CONFIG
    given = read_json(file, required=False)
    named = {name: given[name] for name in BOUNDS if given.get(name) is not None}
    defaults = {name: value for name, value in named.items() if _is_in_bounds(name, value)}
    for name in named.keys() - defaults.keys():
        logger.warning(
            "%s=%s in %s is ignored: it is no number from %g to %g",
            *(name, reprlib.repr(named[name]), file, *BOUNDS[name]),
        )
    return MappingProxyType(defaults)


def _is_in_bounds(name: str, value: object) -> bool:
    least, greatest = BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, type(least) | int):
        return False
    return least <= value <= greatest and not (value == 0 and name in ABOVE_0)
