"""Errors that stop a bench."""

from benchmarking.errors import BenchmarkError


class Disturbed(BenchmarkError):
    """Other work on the host disturbed too many rows."""

    def __init__(self, rows: int, disturbed: int, max_share: float) -> None:
        super().__init__(
            f"in {disturbed} of {rows} rows the host took more than {max_share:.0%} of a core from "
            "this virtual machine: run it at a quieter time"
        )


class Interrupted(BenchmarkError):
    """The user stopped a bench that has no result before its end."""

    def __init__(self) -> None:
        super().__init__("interrupted; what was measured is in the folder of the run")
