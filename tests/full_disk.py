"""A disk without room, as far as this process writes."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(max_bytes: int = 0) -> Iterator[None]:
    """Lets no file, here or in a process that is started, grow beyond these bytes."""
    before, limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, limit))
