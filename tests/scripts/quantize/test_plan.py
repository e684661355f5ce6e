"""Bits go where errors cost most, as far as the average allows."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.quantize.plan import LADDERS, MOST_BITS, UPGRADES, average_bits, planned

KINDS = sorted({kind for kinds, _ in UPGRADES for kind in kinds})
NAMES = st.tuples(st.integers(0, 7), st.sampled_from(KINDS)).map(
    lambda each: (
        f"{each[1]}.weight"
        if each[1] in ("output", "token_embd")
        else f"blk.{each[0]}.{each[1]}.weight"
    )
)
SIZES = st.dictionaries(
    NAMES,
    st.tuples(st.integers(1, 999), st.sampled_from([32, 256, 576, 1536])).map(
        lambda each: (each[0] * each[1], each[1])
    ),
    min_size=1,
)


@given(SIZES)
@settings(max_examples=25)
def test_every_matrix_has_a_form_that_fits_and_all_stay_within_the_average(
    sizes: dict[str, tuple[int, int]],
) -> None:
    plan = planned(sizes)
    assert plan.keys() == sizes.keys()
    assert average_bits(sizes, plan) <= MOST_BITS
    assert all(sizes[name][1] % form.block_inputs == 0 for name, form in plan.items())


@given(SIZES)
@settings(max_examples=25)
def test_what_is_multiplied_at_once_has_one_form(sizes: dict[str, tuple[int, int]]) -> None:
    plan = planned(sizes)
    for first, second in (("attn_q", "attn_k"), ("ffn_gate", "ffn_up")):
        for layer in range(8):
            names = [f"blk.{layer}.{kind}.weight" for kind in (first, second)]
            if all(name in sizes for name in names) and sizes[names[0]][1] == sizes[names[1]][1]:
                assert plan[names[0]] == plan[names[1]]


def test_a_matrix_of_no_class_takes_few_bits() -> None:
    plan = planned({"blk.0.ssm_in.weight": (512, 256)})
    assert [form.kind.name for form in plan.values()] == [LADDERS[256][0]]
