"""Acceptance is learned by row and depth, from what all rows had."""

import pytest

from inference_api.speculation.acceptance import OPTIMISM, AcceptanceRates


def test_nothing_known_is_taken_to_be_good() -> None:
    assert AcceptanceRates(0.9).likelihoods(3) == (OPTIMISM, OPTIMISM)


def test_first_token_and_later_ones_are_told_apart() -> None:
    rates = AcceptanceRates(0.99)
    for step in range(400):
        rates.learn(3, drafted=4, accepted=4 if step % 2 else 0)
    first, later = rates.likelihoods(3)
    assert first == pytest.approx(0.5, abs=0.02)
    assert later > 0.95


def test_short_drafts_say_nothing_about_deeper_tokens() -> None:
    rates = AcceptanceRates(0.99)
    for _ in range(50):
        rates.learn(3, drafted=1, accepted=1)
    assert rates.likelihoods(3)[1] == OPTIMISM


def test_strengths_are_told_apart() -> None:
    rates = AcceptanceRates(0.9)
    rates.learn(2, drafted=4, accepted=0)
    assert rates.likelihoods(2)[0] < rates.likelihoods(3)[0]


def test_new_row_starts_from_what_the_others_had_and_then_goes_its_own_way() -> None:
    of_all = AcceptanceRates(0.99)
    bad, good = AcceptanceRates(0.85, of_all), AcceptanceRates(0.85, of_all)
    for _ in range(30):
        bad.learn(3, drafted=4, accepted=0)
    assert good.likelihoods(3)[0] < 0.1
    for _ in range(8):
        good.learn(3, drafted=4, accepted=4)
    assert good.likelihoods(3)[0] > 0.7 > 0.1 > bad.likelihoods(3)[0]


def test_rates_stay_between_none_and_all() -> None:
    rates = AcceptanceRates(0.5, AcceptanceRates(0.9))
    for drafted in range(1, 6):
        for accepted in range(drafted + 1):
            rates.learn(1, drafted, accepted)
            assert all(0 < each < 1 for each in rates.likelihoods(1))
