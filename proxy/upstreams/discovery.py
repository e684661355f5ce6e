"""Discovery of replicas, whose list may change while the proxy serves."""

from collections.abc import Callable
from typing import Protocol

from proxy.files import WatchedFile
from proxy.upstreams.specs import UpstreamSpec

Specs = tuple[UpstreamSpec, ...]


class Discovery(Protocol):
    """A source of replicas, used by the maintenance thread. A replica that leaves the list gets no
    new requests; its running requests continue to their end.
    """

    @property
    def current(self) -> Specs: ...

    @property
    def is_stale(self) -> bool:
        """Whether the list may be out of date, because its source cannot be reached."""

    def start(self, on_change: Callable[[], object]) -> None:
        """Start in the serving process. `on_change` is called, on any thread, when `changed` may
        have a new list."""

    def stop(self) -> None: ...

    def changed(self) -> Specs | None:
        """Returns the new list, once after each change; else None."""


class FixedReplicas:
    """The replicas in the settings."""

    is_stale = False

    def __init__(self, *specs: UpstreamSpec) -> None:
        self.current: Specs = specs

    def start(self, on_change: Callable[[], object]) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""

    def changed(self) -> Specs | None:
        return None


class ReplicasFile:
    """The replicas in a file, which is followed. A mistake in the file is logged."""

    is_stale = False

    def __init__(self, file: WatchedFile[Specs]) -> None:
        self._file = file

    @property
    def current(self) -> Specs:
        return self._file.value

    def start(self, on_change: Callable[[], object]) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""

    def changed(self) -> Specs | None:
        return self._file.value if self._file.refresh() else None
