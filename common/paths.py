"""Paths as people write them in settings and files: `~` is somebody's home folder. Any thread."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

MAX_PATH_CHARS = 4096  # Linux refuses longer paths
UNSEEN = re.compile(r"[\x00-\x1f\x7f]")


def expanded(path: str | Path) -> Path:
    """Returns the path with the home folder in place of `~`. Raises ValueError, with a remedy."""
    text = str(path)
    if len(text) > MAX_PATH_CHARS:
        raise ValueError(f"has more than {MAX_PATH_CHARS} characters; shorten it")
    if UNSEEN.search(text):
        raise ValueError("has a line break or another control character; remove it")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError("begins with ~ and the name of no user here; write it out") from None


def _existing(path: Path) -> Path:
    try:
        is_there = path.is_file()
    except OSError:  # a name that is too long, a folder without permission
        is_there = False
    if not is_there:
        raise ValueError("is no file that can be read; name one that is there")
    return path


UserPath = Annotated[Path, AfterValidator(expanded)]
UserFile = Annotated[UserPath, AfterValidator(_existing)]
