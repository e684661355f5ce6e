"""Discovery of replicas: a list that may change while the proxy serves."""

from collections.abc import Callable
from typing import Protocol

from proxy.files import WatchedFile
from proxy.upstreams.specs import UpstreamSpec

Specs = tuple[UpstreamSpec, ...]


class Discovery(Protocol):
    """Asked by the maintenance thread. A replica that leaves the list gets no new requests; those
    that it serves run on to their end.
    """

    @property
    def current(self) -> Specs: ...

    @property
    def is_stale(self) -> bool:
        """Whether the list may be an old one, as where it comes from cannot be reached."""

    def start(self, on_change: Callable[[], object]) -> None:
        """In the process that serves. `on_change`, from any thread: `changed` is worth asking."""

    def stop(self) -> None: ...

    def changed(self) -> Specs | None:
        """The new list, once after each change."""


class FixedReplicas:
    """The replicas that the settings name."""

    is_stale = False

    def __init__(self, *specs: UpstreamSpec) -> None:
        self.current: Specs = specs

    def start(self, on_change: Callable[[], object]) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """Nor to stop."""

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
        """There is nothing to start."""

    def stop(self) -> None:
        """Nor to stop."""

    def changed(self) -> Specs | None:
        return self._file.value if self._file.refresh() else None
