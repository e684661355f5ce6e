"""Discovery of replicas, whose list may change while the proxy serves."""

from collections.abc import Callable

from proxy.files import WatchedFile
from proxy.upstreams.specs import UpstreamSpec

Specs = tuple[UpstreamSpec, ...]


class Discovery:
    """A source of replicas; by itself, of the given ones forever. A replica that leaves the list
    gets no new requests; its running requests continue to their end. Any thread may read
    `current`, which is replaced whole."""

    def __init__(self, *specs: UpstreamSpec) -> None:
        self.current: Specs = specs
        self._on_change: Callable[[], object] = lambda: None

    @property
    def is_stale(self) -> bool:
        """Whether the list may be out of date, because its source cannot be reached."""
        return False

    def start(self, on_change: Callable[[], object]) -> None:
        """Start in the serving process. `on_change` is called, on any thread, when there is a new
        list."""
        self._on_change = on_change

    def refresh(self) -> None:
        """Look for changes. May block; one thread at a time."""

    def stop(self) -> None:
        """End what `start` began."""


class ReplicasFile(Discovery):
    """The replicas in a file, which is followed. A mistake in the file is logged."""

    def __init__(self, file: WatchedFile[Specs]) -> None:
        super().__init__(*file.value)
        self._file = file

    def refresh(self) -> None:
        if self._file.refresh():
            self.current = self._file.value
            self._on_change()
