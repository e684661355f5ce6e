"""Progress of a row: one line on standard error, where that is a terminal."""

from types import TracebackType
from typing import NoReturn

from tqdm import tqdm

from benchmarking.load.generator import Progress


class RowProgress:
    """The line of one row. Used by the thread that runs the row."""

    def __init__(self, title: str) -> None:
        self._bar: tqdm[NoReturn] = tqdm(desc=title, unit="request", disable=None, leave=False)

    def __enter__(self) -> "RowProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def show(self, progress: Progress) -> None:
        self._bar.total = progress.num_requests
        self._bar.set_postfix(running=progress.num_in_flight, failed=progress.num_failed)
        self._bar.update(progress.num_done - self._bar.n)
