"""Discovery of replicas: a list that may change while the proxy serves."""

from typing import Protocol

from proxy.files import WatchedFile
from proxy.upstreams.balancer import UpstreamSpec

Specs = tuple[UpstreamSpec, ...]


class Discovery(Protocol):
    """Asked by the maintenance thread. A replica that leaves the list gets no new requests; those
    that it serves run on to their end.
    """

    @property
    def current(self) -> Specs: ...

    def changed(self) -> Specs | None:
        """The new list, once after each change."""
        ...


class FixedReplicas:
    """Those of the settings."""

    def __init__(self, *specs: UpstreamSpec) -> None:
        self.current: Specs = specs

    def changed(self) -> Specs | None:
        return None


class ReplicasFile:
    """Those of a file that is followed."""

    def __init__(self, file: WatchedFile[Specs]) -> None:
        self._file = file

    @property
    def current(self) -> Specs:
        return self._file.value

    def changed(self) -> Specs | None:
        return self._file.value if self._file.refresh() else None
