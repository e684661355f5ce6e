"""What experts take together, by hand, and which changes keep a limit."""

from inference_api.engine.loading.bundle_sums import (
    FAST_MEMORY,
    MEMORY,
    Piece,
    Taken,
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
    int4: int | None = None,
    folder: str | None = None,
) -> Taken:
    pieces = (Piece((folder or name, "none"), weights, cache),)
    as_int4 = None if int4 is None else taken(name, int4, cache, rows, is_pinned, scratch)
    return Taken(name, pieces, rows, is_pinned, scratch, as_int4)


def test_weights_in_common_count_once_and_caches_each() -> None:
    experts = [taken("a", 100, 3, rows=2, folder="x"), taken("b", 100, 5, rows=4, folder="x")]
    assert [each.need_bytes for each in experts] == [106, 120]
    assert memory_need(experts) == 100


def test_fast_memory_holds_the_pinned_the_largest_other_and_one_scratch() -> None:
    experts = [
        taken("p", 100, 1, rows=2, is_pinned=True, scratch=7),
        taken("q", 50, is_pinned=True, scratch=9),
        taken("a", 30, 10, rows=3),
        taken("b", 55),
    ]
    assert fast_memory_need(experts) == 102 + 50 + 60 + 9
    assert fast_memory_need(experts[:2]) == 152 + 9
    assert fast_memory_need([]) == 0


def test_other_expert_that_has_a_pinned_ones_weights_adds_its_cache_alone() -> None:
    experts = [taken("p", 100, is_pinned=True, folder="x"), taken("a", 100, 4, rows=2, folder="x")]
    assert fast_memory_need(experts) == 108


def test_limit_that_is_just_kept_is_no_excess() -> None:
    assert excess(MEMORY, [taken("a", 100)], 100) is None


def test_smallest_change_that_suffices_is_named_with_its_bytes() -> None:
    experts = [taken("a", 500, int4=100), taken("b", 90, int4=60), taken("c", 70, int4=69)]
    assert excess(MEMORY, experts, 640) == (
        "memory_limit: need 660 bytes, limit 640, over by 20; drop c (70), int4 for b (saves 30) "
        "or raise memory_limit."
    )


def test_several_changes_are_named_where_none_suffices_alone() -> None:
    experts = [taken("a", 100, int4=40), taken("b", 100, int4=45), taken("c", 10)]
    assert excess(MEMORY, experts, 100) == (
        "memory_limit: need 210 bytes, limit 100, over by 110; drop a (100) and c (10), int4 for a "
        "(saves 60) and b (saves 55) or raise memory_limit."
    )


def test_change_that_another_makes_needless_is_not_named() -> None:
    experts = [taken("p", 50, is_pinned=True), taken("a", 100), taken("b", 100)]
    assert excess(FAST_MEMORY, experts, 60) == (
        "fast_memory_limit: need 150 bytes, limit 60, over by 90; drop a (100) and b (100) or "
        "raise fast_memory_limit."
    )


def test_changes_that_do_not_suffice_are_not_named() -> None:
    assert excess(MEMORY, [taken("a", 100, int4=60)], 50) == (
        "memory_limit: need 100 bytes, limit 50, over by 50; drop a (100) or raise memory_limit."
    )


def test_all_of_several_largest_experts_have_to_change() -> None:
    experts = [taken("a", 100, int4=40), taken("b", 100, int4=40), taken("c", 30, int4=10)]
    assert excess(FAST_MEMORY, experts, 60) == (
        "fast_memory_limit: need 100 bytes, limit 60, over by 40; drop a (100) and b (100), int4 "
        "for a (saves 60) and b (saves 60) or raise fast_memory_limit."
    )


def test_int4_of_weights_that_another_expert_goes_on_using_saves_nothing() -> None:
    experts = [taken("a", 100, int4=40, folder="x"), taken("b", 100, folder="x")]
    assert excess(MEMORY, experts, 90) == (
        "memory_limit: need 100 bytes, limit 90, over by 10; raise memory_limit."
    )
