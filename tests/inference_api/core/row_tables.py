"""User rows for tests that need no model."""

from inference_api._mock_inference_api_server import EchoRunner
from inference_api.core.rows import RowTable
from inference_api.core.state.row_pages import RowPages


def make_rows(max_rows: int = 1, max_seq_len: int = 128) -> RowTable:
    runner = EchoRunner(max_rows, max_seq_len)
    return RowTable(max_rows, RowPages(runner, max_rows))
