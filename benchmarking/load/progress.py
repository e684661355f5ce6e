"""Shows the progress of a run: lines on standard error, if that is a terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tqdm import tqdm

from benchmarking.load.generator import Progress

ROW_LINE = "{desc}: {n_fmt}/{total_fmt}{postfix} {bar}"


class RunProgress:
    """A bar of the rows that have ended, and below it a line for each row that is running. Without
    `num_rows` there is no bar. Rows may run in several threads."""

    def __init__(self, num_rows: int | None = None) -> None:
        is_hidden = None if num_rows else True  # None: unless it is a terminal
        self._bar: tqdm[NoReturn] = tqdm(
            desc="rows", total=num_rows, unit="row", disable=is_hidden, leave=False
        )

    def close(self) -> None:
        self._bar.close()

    @contextmanager
    def row(self, number: int, model: str) -> Iterator[Callable[[Progress], None]]:
        """Shows the line of one row. Yields a function that updates it."""
        bar: tqdm[NoReturn] = tqdm(
            desc=f"row {number + 1}", bar_format=ROW_LINE, disable=None, leave=False
        )

        def show(progress: Progress) -> None:
            bar.total, bar.n = progress.num_requests, progress.num_done
            bar.set_postfix_str(f"{_figures(progress)}, {model}")
            self._bar.refresh()

        try:
            with bar:
                yield show
        finally:
            self._bar.update()


def _figures(progress: Progress) -> str:
    """Returns figures that fit into a line of 80 characters. Latencies are means."""
    elapsed_s = max(time.monotonic() - progress.began_s, 1e-3)
    parts = [
        f"{progress.num_done / elapsed_s:.1f}/s",
        f"{progress.num_in_flight} running",
        f"{progress.num_failed} failed",
        f"{progress.output_tokens / elapsed_s:.0f} tokens/s",
    ]
    if answered := progress.num_answered:
        parts.append(f"TTFT {1000 * progress.first_token_s / answered:.0f} ms")
        if gaps := progress.output_tokens - answered:
            parts.append(f"ITL {1000 * progress.decode_s / gaps:.1f} ms")
    return ", ".join(parts)
