"""What clients and operators are told about members that they cannot have, or cannot unload."""

from inference_api.errors import MemberBusy, MemberFailed, MemberPinned, MemberQueueFull


def test_full_queue_of_an_member_is_too_many_requests_and_names_it() -> None:
    error = MemberQueueFull("sql", 256, retry_after_s=7)
    assert (error.status, error.code, error.retry_after_s) == (429, "queue_full", 7)
    assert str(error) == "sql: 256 waiting"
    assert error.body()["error"]["type"] == "rate_limit_error"


def test_failed_member_is_unavailable_and_says_why() -> None:
    error = MemberFailed("sql", "truncated at byte 9", retry_after_s=30)
    assert (error.status, error.retry_after_s) == (503, 30)
    assert str(error) == "sql failed: truncated at byte 9"


def test_refusals_to_unload_are_conflicts_and_name_the_member() -> None:
    assert MemberPinned("sql").status == MemberBusy("sql", 1, 2).status == 409
    assert str(MemberPinned("sql")).startswith("sql is pinned")
    assert str(MemberBusy("sql", 1, 2)).startswith("sql: 1 running, 2 waiting")
