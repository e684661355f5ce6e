"""Discovery of replicas, whose list may change while the proxy serves."""

from collections.abc import Callable

from proxy.files import WatchedFile
from proxy.upstreams.specs import UpstreamSpec

Specs = tuple[UpstreamSpec, ...]


class Discovery:
    """A source of replicas, for the maintenance thread. This base class has the given ones forever.
    A replica that leaves the list gets no new requests; its running requests continue."""

    def __init__(self, *specs: UpstreamSpec) -> None:
        self.current: Specs = specs

    @property
    def is_stale(self) -> bool:
        """Whether the list may be out of date, because its source cannot be reached."""
        return False

    def start(self, on_change: Callable[[], object]) -> None:
        """Start in the serving process. `on_change` is called, on any thread, when `changed` may
        have a new list."""

    def stop(self) -> None:
        """End what `start` began."""

    def changed(self) -> Specs | None:
        """Returns the new list, once after each change; else None."""
        return None


class ReplicasFile(Discovery):
    """The replicas in a file, which is followed. A mistake in the file is logged."""

    def __init__(self, file: WatchedFile[Specs]) -> None:
        super().__init__(*file.value)
        self._file = file

    def changed(self) -> Specs | None:
        if not self._file.refresh():
            return None
        self.current = self._file.value
        return self.current
