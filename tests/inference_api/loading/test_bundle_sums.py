"""What members take together, by hand, and what to drop to keep a limit."""

from inference_api.bundle.sums import (
    FAST_MEMORY,
    MEMORY,
    MemberMemory,
    Piece,
    excess,
    fast_memory_need,
    memory_need,
)


def taken(
    name: str,
    weights: int,
    cache: int = 0,
    rows: int = 1,
    is_pinned: bool = False,
    scratch: int = 0,
    folder: str | None = None,
) -> MemberMemory:
    pieces = (Piece((folder or name, "none"), weights, cache, rows * cache),)
    return MemberMemory(name, pieces, is_pinned, scratch)


def test_weights_in_common_count_once_and_caches_each() -> None:
    members = [taken("a", 100, 3, rows=2, folder="x"), taken("b", 100, 5, rows=4, folder="x")]
    assert [each.need_bytes for each in members] == [106, 120]
    assert memory_need(members) == 100


def test_fast_memory_holds_the_pinned_the_largest_other_and_one_scratch() -> None:
    members = [
        taken("p", 100, 1, rows=2, is_pinned=True, scratch=7),
        taken("q", 50, is_pinned=True, scratch=9),
        taken("a", 30, 10, rows=3),
        taken("b", 55),
    ]
    assert fast_memory_need(members) == 102 + 50 + 60 + 9
    assert fast_memory_need(members[:2]) == 152 + 9
    assert fast_memory_need([]) == 0


def test_other_member_that_has_a_pinned_ones_weights_adds_its_cache_alone() -> None:
    members = [taken("p", 100, is_pinned=True, folder="x"), taken("a", 100, 4, rows=2, folder="x")]
    assert fast_memory_need(members) == 108


def test_limit_that_is_just_kept_is_no_excess() -> None:
    assert excess(MEMORY, [taken("a", 100)], 100) is None


def test_smallest_member_that_suffices_is_named_with_its_bytes() -> None:
    members = [taken("a", 500), taken("b", 90), taken("c", 70)]
    assert excess(MEMORY, members, 640) == (
        "memory_limit: need 660 bytes, limit 640, over by 20; drop c (70) or raise memory_limit."
    )


def test_several_members_are_named_where_none_suffices_alone() -> None:
    members = [taken("a", 100), taken("b", 100), taken("c", 10)]
    assert excess(MEMORY, members, 100) == (
        "memory_limit: need 210 bytes, limit 100, over by 110; drop a (100) and c (10) or raise "
        "memory_limit."
    )


def test_member_that_another_makes_needless_is_not_named() -> None:
    members = [taken("p", 50, is_pinned=True), taken("a", 100), taken("b", 100)]
    assert excess(FAST_MEMORY, members, 60) == (
        "fast_memory_limit: need 150 bytes, limit 60, over by 90; drop a (100) and b (100) or "
        "raise fast_memory_limit."
    )


def test_an_member_alone_is_named_though_nothing_is_left() -> None:
    assert excess(MEMORY, [taken("a", 100)], 50) == (
        "memory_limit: need 100 bytes, limit 50, over by 50; drop a (100) or raise memory_limit."
    )


def test_all_of_several_largest_members_have_to_go() -> None:
    members = [taken("a", 100), taken("b", 100), taken("c", 30)]
    assert excess(FAST_MEMORY, members, 60) == (
        "fast_memory_limit: need 100 bytes, limit 60, over by 40; drop a (100) and b (100) or "
        "raise fast_memory_limit."
    )


def test_dropping_every_member_is_no_remedy() -> None:
    members = [taken("a", 100, folder="x"), taken("b", 100, folder="x")]
    assert excess(MEMORY, members, 90) == (
        "memory_limit: need 100 bytes, limit 90, over by 10; raise memory_limit."
    )
