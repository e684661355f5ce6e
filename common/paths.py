"""Paths and addresses as people write them in settings, files and commands: `~` is somebody's home
folder. Any thread."""

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator

MAX_PATH_CHARS = 4096  # Linux takes no longer ones
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


def http_parts(url: str) -> SplitResult:
    """Returns the parts of an address with scheme and host, and a port that there can be. Raises
    ValueError, which says nothing of it: it may hold a password."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or url.split() != [url]:
        raise ValueError("is no address; give one like http://127.0.0.1:7000")
    return parts


def _base(url: str) -> str:
    parts = http_parts(url)
    if parts.query or parts.fragment:
        raise ValueError("has a query or a fragment; leave it out")
    return url.rstrip("/")


UserPath = Annotated[Path, AfterValidator(expanded)]
UserFile = Annotated[UserPath, AfterValidator(_existing)]
HttpUrl = Annotated[str, AfterValidator(lambda url: http_parts(url) and url)]
BaseUrl = Annotated[str, AfterValidator(_base)]  # paths follow it
