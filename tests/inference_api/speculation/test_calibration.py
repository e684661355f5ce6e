"""Likelihoods become what guesses of a kind turn out to be, whether they are tried or not."""

from collections.abc import Sequence

import pytest

from inference_api.core.drafts import Outcome
from inference_api.core.rows import Draft
from inference_api.runner import Drawn
from inference_api.speculation.calibration import Calibration, ProposedDraft
from tests.inference_api.speculation.rows import rows_of

[ROW] = rows_of([1])


def learned(
    calibration: Calibration,
    draft: Draft,
    drawn: Sequence[int],
    kinds: Sequence[int] = (0, 0, 0),
    probability: float = 0.5,
) -> list[bool]:
    guesses = range(len(draft.token_ids))
    bins = [calibration.calibrated(kinds[at], probability)[0] for at in guesses]
    calibration.drafts([ProposedDraft(ROW, draft, bins, [probability for _ in guesses])])
    outcome = Outcome(ROW, [Drawn(token_id) for token_id in drawn])
    return [is_right for _, is_right in calibration.learn([outcome])]


@pytest.mark.parametrize(
    ("parents", "drawn", "expected"),
    [
        (None, [9], [False]),
        (None, [5], [True]),  # the others would be next
        (None, [5, 6, 9], [True, True, False]),
        ([-1, -1, 0], [6], [False, True]),
        ([-1, -1, 0], [5, 7, 8], [True, False, True]),
    ],
)
def test_guesses_that_follow_right_ones_are_found_right_or_wrong(
    parents: Sequence[int] | None, drawn: list[int], expected: list[bool]
) -> None:
    draft = Draft([5, 6, 7], parents, [0.5, 0.4, 0.3])
    assert learned(Calibration(1), draft, drawn) == expected


def test_own_probabilities_are_believed_until_more_is_known() -> None:
    for probability in (0.9, 0.3, 0.01):
        assert Calibration(1).calibrated(0, probability)[1] == probability
    assert Calibration(1).calibrated(0, 1.0)[1] < 1.0


@pytest.mark.parametrize("drawn", [5, 9])
def test_what_is_no_probability_is_unlikely(drawn: int) -> None:
    calibration, nothing = Calibration(1), float("nan")
    for _ in range(50):
        learned(calibration, Draft([5]), [drawn], probability=nothing)
    assert 0.0 < calibration.calibrated(0, nothing)[1] < 1e-6
    assert calibration.calibrated(0, 0.5)[1] == 0.5


def test_kinds_and_probabilities_are_told_apart() -> None:
    calibration = Calibration(2)
    for _ in range(400):
        learned(calibration, Draft([5, 6], None), [5, 9], kinds=[0, 1])
    assert calibration.calibrated(0, 0.5)[1] > 0.95
    assert calibration.calibrated(1, 0.5)[1] < 0.05
    assert calibration.calibrated(1, 0.9)[1] == 0.9


def test_newer_guesses_count_more() -> None:
    calibration = Calibration(1)
    for _ in range(5000):
        learned(calibration, Draft([5]), [9])
    for _ in range(1500):
        learned(calibration, Draft([5]), [5])
    assert calibration.calibrated(0, 0.5)[1] > 0.9


def test_only_the_next_outcome_of_the_same_request_is_learned_from() -> None:
    calibration = Calibration(1)
    proposed = ProposedDraft(ROW, Draft([5], None, [0.5]), [0], [0.5])
    [other] = rows_of([1])
    assert calibration.drafts([proposed]) == {0: proposed.draft}
    assert calibration.learn([Outcome(other, [Drawn(5)])]) == []
    assert calibration.learn([Outcome(ROW, [Drawn(5)])]) == []
