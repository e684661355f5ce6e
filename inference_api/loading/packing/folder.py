"""The folder of packed files, which later loads map instead of packing again.

The key in a file's name, `<key>.hearth`, is a hash of the model's bytes and of the options of
packing, so a file never changes.
"""

import fcntl
import hashlib
import logging
import mmap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from weakref import WeakValueDictionary

from common.files import whole_file
from inference_api.errors import StartupError
from inference_api.loading.packing.files import Identity, PackedModel, read_packed, write_packed
from inference_api.loading.packing.hashes import SourceHashes
from inference_api.loading.packing.layout import UnusablePackedFile
from inference_api.loading.packing.pages import Pause
from inference_api.loading.weights import Packing, Parameters

logger = logging.getLogger(__name__)

SUFFIX, LOCK_SUFFIX = ".hearth", ".lock"
DRAFTS = f"*{SUFFIX}.*.draft"  # unfinished files: see `whole_file`
LOCK_TIMEOUT_S = 600.0  # wait for another process that packs the same model
LOCK_POLL_S = 0.05


class PackedFolder:
    """May be used by any thread of any process: a file is made under its key's lock.

    Checksums are compared when this object first reads a file that it has not made. An unusable
    file is logged and made again.
    """

    def __init__(self, folder: Path, pause: Pause = lambda: None) -> None:
        """`pause` is called after every few milliseconds of work. It may wait."""
        self._folder = folder
        self._pause = pause
        self._sources = SourceHashes(folder, pause)
        self._checked: set[Identity] = set()
        # Keyed like files: see `_key`.
        self._memories: WeakValueDictionary[str, mmap.mmap] = WeakValueDictionary()

    def has(self, model: PackedModel) -> bool:
        """Returns whether the weights in their present state are packed. Raises StartupError."""
        hashes = [each for file in model.files if (each := self._sources.known_hash(file))]
        return len(hashes) == len(model.files) and self._path(_key(model, hashes)).exists()

    def load(self, model: PackedModel, packing: Packing) -> Parameters:
        """Load the weights, after packing them if needed.

        Parameters of the same key share memory, which is freed with the last of them. `packing` is
        only stored in them. Raises StartupError and MemoryError.
        """
        _, memory = self.memory(model)
        return model.parameters(memory, packing)

    def key(self, model: PackedModel) -> str:
        """Returns the key of the weights as they are now. Raises StartupError."""
        with _faults_named(model, self._folder):
            return self._key(model)

    def memory(self, model: PackedModel) -> tuple[str, mmap.mmap]:
        """Returns the key of the weights as they are now, and their file in memory: see `load`."""
        with _faults_named(model, self._folder):
            key = self._key(model)
            memory = self._memories.get(key) or self._read(model, key)
            self._memories[key] = memory
        return key, memory

    def _key(self, model: PackedModel) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        return _key(model, [self._sources.file_hash(file) for file in model.files])

    def _path(self, key: str) -> Path:
        return self._folder / (key + SUFFIX)

    def _read(self, model: PackedModel, key: str) -> mmap.mmap:
        path = self._path(key)
        if path.exists():
            try:
                return self._mapped_file(model, key)
            except UnusablePackedFile as fault:
                logger.warning("%s: %s; %s is packed anew", path, fault, model.name)
                path.unlink(missing_ok=True)
        self._pack(model, key)
        return self._mapped_file(model, key)

    def _mapped_file(self, model: PackedModel, key: str) -> mmap.mmap:
        return read_packed(self._path(key), key, model.layout, self._checked, self._pause)

    def _pack(self, model: PackedModel, key: str) -> None:
        """Make the file, unless another process has made it meanwhile."""
        path = self._path(key)
        self._remove_leftovers()
        with self._locked(key):
            if path.exists():
                return
            started_s = time.monotonic()
            with whole_file(path) as draft:
                identity = write_packed(draft, key, model, self._pause)
                if self._key(model) != key:
                    raise StartupError(f"{model.name} changes while it is packed; load it again.")
            self._checked.add(identity)
        logger.info("packed %s in %.1f s: %s", model.name, time.monotonic() - started_s, path)

    def _remove_leftovers(self) -> None:
        """Remove unfinished files of dead processes, whose keys' locks are free."""
        for draft in self._folder.glob(DRAFTS):
            with self._lock_path(draft.name.partition(".")[0]).open("w") as lock:
                if _is_locked(lock):
                    draft.unlink(missing_ok=True)

    def _lock_path(self, key: str) -> Path:
        return self._folder / (key + LOCK_SUFFIX)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        path = self._lock_path(key)
        until_s = time.monotonic() + LOCK_TIMEOUT_S
        with path.open("w") as lock:
            while not _is_locked(lock):
                if time.monotonic() > until_s:
                    raise StartupError(
                        f"{path} has been held for {LOCK_TIMEOUT_S:g} s by another process "
                        "that packs the same model; end it, or set another PACKED_FOLDER."
                    )
                time.sleep(LOCK_POLL_S)
            yield


def _key(model: PackedModel, source_hashes: Sequence[str]) -> str:
    return hashlib.sha256(model.form + "".join(source_hashes).encode()).hexdigest()


def _is_locked(lock: IO[str]) -> bool:
    """Try to take the lock, and return whether it succeeded. Closing the file releases it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _faults_named(model: PackedModel, folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnusablePackedFile) as error:
        raise StartupError(
            f"{model.name} cannot be packed in {folder} ({error}): it takes "
            f"{model.layout.file_bytes} bytes there; make room, or set another PACKED_FOLDER."
        ) from error
