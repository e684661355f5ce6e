"""Descriptions of views."""

from functools import wraps

from common.operations import Operation, operation, operation_of


def test_a_description_leaves_the_view_as_it_is_and_is_found_through_wrappers() -> None:
    def view() -> str:
        return "answer"

    described = operation("Say it.", {200: str}, body=int, query={"a": {"type": "string"}})(view)

    @wraps(described)
    def wrapper() -> str:
        return view()

    assert described is view
    assert operation_of(wrapper) == Operation("Say it.", {200: str}, int, {"a": {"type": "string"}})


def test_a_view_without_a_description_has_none() -> None:
    assert operation_of(lambda: None) is None
