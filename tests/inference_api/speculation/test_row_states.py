"""What is known of a row is of its request."""

from inference_api.core.drafts import RowStates
from inference_api.core.rows import UserRow
from tests.inference_api.speculation.rows import rows_of


def test_state_stays_while_its_request_decodes_and_is_dropped_then() -> None:
    begun: list[str] = []

    def start(row: UserRow) -> list[str]:
        begun.append(row.session_id)
        return [row.session_id]

    states = RowStates(start)
    first, second = rows_of([1], [2])
    [kept] = states.for_rows([second])
    assert states.for_rows([first, second])[1] is kept
    assert states.for_rows([]) == []
    assert states.for_rows([second])[0] is not kept
    assert begun == ["1", "0", "1"]
